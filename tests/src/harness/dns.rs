//! As much of DNS (RFC 1035) as a resolver and a server need to have one question answered.
//!
//! Both sides check the message of the other: a datagram that is mixed up, cut or of another query is an error.

use std::io::{Error, ErrorKind, Read, Result, Write};

/// What the question is about; any name does.
const NAME: [&str; 3] = ["who", "portway", "test"];
/// Type TXT, class IN.
const TXT_IN: [u8; 4] = [0, 16, 0, 1];
const HEADER: usize = 12;
/// Recursion desired.
const QUERY_FLAGS: [u8; 2] = [0x01, 0x00];
/// A response, authoritative, without an error; recursion desired as in the query.
const ANSWER_FLAGS: [u8; 2] = [0x85, 0x00];
/// The name at offset 12: that of the question.
const NAME_OF_QUESTION: [u8; 2] = [0xc0, HEADER as u8];

/// The question "TXT of who.portway.test".
pub fn query(id: u16) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend(QUERY_FLAGS);
    message.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    for label in NAME {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(TXT_IN);
    message
}

/// The answer `text`, at most 255 bytes long, to `question`. `None` where that is not what [`query`] makes.
pub fn answer(question: &[u8], text: &str) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes(*question.first_chunk()?);
    let len = u8::try_from(text.len()).ok()?;
    if question != query(id) {
        return None;
    }
    let mut message = id.to_be_bytes().to_vec();
    message.extend(ANSWER_FLAGS);
    message.extend([0, 1, 0, 1, 0, 0, 0, 0]);
    message.extend(question.get(HEADER..)?);
    message.extend(NAME_OF_QUESTION);
    message.extend(TXT_IN);
    message.extend([0; 4]); // time to live
    message.extend((u16::from(len) + 1).to_be_bytes());
    message.push(len);
    message.extend(text.as_bytes());
    Some(message)
}

/// The text of `answer` to [`query`]`(id)`.
pub fn read_answer(id: u16, message: &[u8]) -> Result<String> {
    let text =
        std::str::from_utf8(text_of(message)).map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    // There is one right answer with this text.
    if answer(&query(id), text).as_deref() != Some(message) {
        return Err(Error::new(ErrorKind::InvalidData, format!("no answer to query {id}: {message:02x?}")));
    }
    Ok(text.to_owned())
}

fn text_of(message: &[u8]) -> &[u8] {
    let before = query(0).len() + NAME_OF_QUESTION.len() + TXT_IN.len() + 4 + 2 + 1;
    message.get(before..).unwrap_or_default()
}

/// A message over TCP comes after its length (RFC 1035, 4.2.2).
pub fn write_message(stream: &mut impl Write, message: &[u8]) -> Result<()> {
    let len = u16::try_from(message.len()).map_err(|error| Error::new(ErrorKind::InvalidInput, error))?;
    stream.write_all(&[&len.to_be_bytes(), message].concat())
}

pub fn read_message(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut message = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut message)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_answered() {
        assert_eq!(read_answer(7, &answer(&query(7), "10.0.0.1:53").unwrap()).unwrap(), "10.0.0.1:53");
    }

    #[test]
    fn a_query_is_what_the_rfc_draws() {
        let wire =
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03who\x07portway\x04test\x00\x00\x10\x00\x01";
        assert_eq!(query(0x1234), wire);
    }

    #[test]
    fn answers_to_another_query_and_cut_ones_are_errors() {
        let message = answer(&query(7), "10.0.0.1:53").unwrap();
        assert!(read_answer(8, &message).is_err());
        assert!(read_answer(7, &query(7)).is_err());
        for len in 0..message.len() {
            assert!(read_answer(7, &message[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(answer(b"GET / HTTP/1.1", "x"), None);
    }

    #[test]
    fn messages_over_tcp_carry_their_length() {
        let mut wire = Vec::new();
        write_message(&mut wire, b"abc").unwrap();
        assert_eq!(wire, b"\0\x03abc");
        assert_eq!(read_message(&mut wire.as_slice()).unwrap(), b"abc");
    }
}
