//! As much of HTTP/1.1 (RFC 9112) as one GET needs, on both sides.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};

/// More than a request or an answer of the tests takes.
const LIMIT: u64 = 4096;

/// Asks `host` for `/` and reads the body of the answer.
pub fn get(stream: &mut (impl Read + Write), host: impl Display) -> Result<String> {
    let request =
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: portway-probe\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut stream = BufReader::new(stream.take(LIMIT));
    let status = line(&mut stream)?;
    let mut len = None;
    for header in headers(&mut stream)? {
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            len = value.trim().parse().ok();
        }
    }
    let Some(len) = len.filter(|_| status.starts_with("HTTP/1.1 200 ")) else {
        return Err(invalid(format!("the answer {status:?} with the length {len:?}")));
    };
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    String::from_utf8(body).map_err(|error| invalid(error.to_string()))
}

/// Reads a request and answers `body` to a GET, 405 to everything else.
pub fn answer(stream: &mut (impl Read + Write), body: &str) -> Result<()> {
    let mut request = BufReader::new(Read::by_ref(stream).take(LIMIT));
    let first = line(&mut request)?;
    headers(&mut request)?;
    let (status, body) = match first.as_str() {
        "GET / HTTP/1.1" => ("200 OK", body),
        _ => ("405 Method Not Allowed", ""),
    };
    let len = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes())
}

/// To the empty line.
fn headers(stream: &mut impl BufRead) -> Result<Vec<String>> {
    let mut headers = Vec::new();
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            return Ok(headers);
        }
        headers.push(header);
    }
}

fn line(stream: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_get_is_answered() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || answer(&mut server, "10.0.0.1:8080"));
        assert_eq!(get(&mut client, "10.96.0.1:80").unwrap(), "10.0.0.1:8080");
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn an_error_and_a_cut_answer_are_no_answers() {
        for text in [
            "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            "",
        ] {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            server.write_all(text.as_bytes()).unwrap();
            server.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(get(&mut client, "host").is_err(), "{text:?}");
        }
    }
}
