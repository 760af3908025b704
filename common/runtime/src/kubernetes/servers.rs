use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::error::{ClientError, RequestError};

/// The API servers of one cluster. Requests go to one of them until it fails; then to the next.
#[derive(Debug)]
pub(super) struct Servers {
    urls: Vec<String>,
    current: AtomicUsize,
    /// The last request failed, so that a round of moves is told once.
    searching: AtomicBool,
}

impl Servers {
    /// `urls` without a slash at their end. The first one is tried first.
    pub(super) fn new(urls: &[String]) -> Result<Self, ClientError> {
        let urls = urls.iter().map(|url| base(url)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { urls, current: AtomicUsize::new(0), searching: AtomicBool::new(false) })
    }

    pub(super) fn len(&self) -> usize {
        self.urls.len()
    }

    /// Which one, and its URL.
    pub(super) fn current(&self) -> (usize, &str) {
        let index = self.current.load(Ordering::Relaxed);
        (index, self.urls.get(index).map_or("", String::as_str))
    }

    /// `server` answered.
    pub(super) fn answered(&self, server: usize) {
        if self.searching.swap(false, Ordering::Relaxed) && self.len() > 1 {
            let url = self.urls.get(server).map_or("", String::as_str);
            tracing::info!(server = url, "an API server answers");
        }
    }

    /// `server` failed: the next one is asked from now on, unless someone else moved on already.
    pub(super) fn leave(&self, server: usize, error: &dyn std::fmt::Display) {
        if self.len() < 2 {
            return;
        }
        let next = (server + 1) % self.len();
        if self.current.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let to = self.urls.get(next).map_or("", String::as_str);
        if self.searching.swap(true, Ordering::Relaxed) {
            tracing::debug!(to, %error, "an API server fails, too");
        } else {
            tracing::warn!(to, %error, "the API server fails; asking the next one");
        }
    }

    /// The whole URL of a request.
    pub(super) fn url(base: &str, path: &str) -> Result<http::Uri, RequestError> {
        let bad = |problem: String| RequestError::Path { path: path.to_owned(), problem };
        if !path.starts_with('/') {
            return Err(bad("it does not begin with /".to_owned()));
        }
        format!("{base}{path}").parse().map_err(|error: http::uri::InvalidUri| bad(error.to_string()))
    }
}

/// What a URL must be to be put in front of a path.
fn base(url: &str) -> Result<String, ClientError> {
    let bad = |problem: &str| ClientError::Server { url: url.to_owned(), problem: problem.to_owned() };
    let parsed: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| bad(&error.to_string()))?;
    match parsed.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return Err(bad("its scheme is neither http nor https")),
        None => return Err(bad("it has no scheme")),
    }
    if parsed.query().is_some() {
        return Err(bad("it has a query"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(urls: &[&str]) -> Result<Servers, ClientError> {
        Servers::new(&urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_server_that_fails_is_left_once_however_many_saw_it() {
        let servers = servers(&["https://a/", "https://b:6443", "https://[::1]"]).unwrap();
        assert_eq!(servers.current(), (0, "https://a"));
        servers.leave(0, &"refused");
        servers.leave(0, &"refused");
        assert_eq!(servers.current(), (1, "https://b:6443"));
        servers.leave(1, &"refused");
        // A request that was still with the first one.
        servers.leave(0, &"no answer");
        assert_eq!(servers.current(), (2, "https://[::1]"));
        servers.leave(2, &"refused");
        assert_eq!(servers.current(), (0, "https://a"));
    }

    #[test]
    fn a_url_that_is_no_server_is_named() {
        for (url, problem) in [
            ("10.0.0.1:6443", "scheme"),
            ("ftp://a", "neither"),
            ("https://a/?x=1", "query"),
            ("http://", ""),
        ] {
            let error = servers(&[url]).unwrap_err().to_string();
            assert!(error.contains(url) && error.contains(problem), "{error}");
        }
    }
}
