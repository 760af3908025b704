module portway.test/images

go 1.26.0
