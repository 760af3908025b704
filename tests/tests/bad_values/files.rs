//! What is wrong with a file as a whole.

use serde_json::Value;

/// A broken form of a file that held `healthy`, called `what`.
pub(crate) struct BrokenFile {
    pub(crate) what: String,
    pub(crate) bytes: Vec<u8>,
    /// Whether the file as a whole can't be read: it keeps its last good objects and is named.
    pub(crate) unreadable: bool,
}

/// `text` is a readable file of several documents; `object` one of them.
pub(crate) fn broken_files(text: &str, object: &Value) -> Vec<BrokenFile> {
    let mut all = Vec::new();
    let mut add = |what: &str, bytes: Vec<u8>, unreadable: bool| {
        all.push(BrokenFile { what: what.to_owned(), bytes, unreadable });
    };
    let json = object.to_string();
    // Every cut but those that leave nothing or everything, a prime step apart.
    for at in (1..json.len()).step_by(41) {
        add(&format!("half written, {at} bytes of JSON"), json.as_bytes()[..at].to_vec(), true);
    }
    for at in (1..text.len()).step_by(151) {
        // A cut YAML text may be readable and lack something, so what it means is not judged here.
        add(&format!("half written, {at} bytes of YAML"), text.as_bytes()[..at].to_vec(), false);
    }
    let mut latin1 = json.clone().into_bytes();
    let middle = latin1.len() / 2;
    latin1[middle] = 0xe9;
    add("invalid UTF-8", latin1, true);
    add("UTF-16", json.encode_utf16().flat_map(u16::to_le_bytes).collect(), true);
    add("NUL bytes", vec![0; 4096], true);
    add("random bytes", (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect(), true);
    add("gzip", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0xff, 0xff], true);
    add("deep JSON lists", "[".repeat(200_000).into_bytes(), true);
    add("deep JSON maps", "{\"a\":".repeat(200_000).into_bytes(), true);
    add("deep YAML lists", "- ".repeat(200_000).into_bytes(), true);
    let deep_yaml: String = (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    add("deep YAML maps", deep_yaml.into_bytes(), false);
    add("YAML with tabs", b"apiVersion: v1\nkind: Service\nmetadata:\n\tname: x\n".to_vec(), true);
    add("YAML with an open quote", b"apiVersion: v1\nkind: \"Service\nmetadata: {}\n".to_vec(), true);
    let laughs = (1..12).fold("a0: &a0 [x, x]\n".to_owned(), |all, n| {
        let last = n - 1;
        all + &format!(
            "a{n}: &a{n} [*a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}]\n"
        )
    });
    add("billion laughs", laughs.into_bytes(), false);
    add("an alias of itself", b"a: &a [*a]\n".to_vec(), false);
    add("a trailing comma", json.replacen("}}", "},}", 1).into_bytes(), false);
    add("garbage after JSON", format!("{json} garbage").into_bytes(), false);
    for (what, text) in [
        ("empty", ""),
        ("only blanks", " \n \n"),
        ("only a comment", "# nothing\n"),
        ("only separators", "---\n---\n---\n"),
        ("null", "null"),
        ("a number", "42"),
        ("a word", "hello"),
        ("a list", "[1, 2]"),
        ("an empty map", "{}"),
        ("a map of other things", "{\"a\": 1}"),
        ("no kind", "{\"apiVersion\": \"v1\", \"metadata\": {\"name\": \"x\"}}"),
        ("kind a number", "{\"apiVersion\": \"v1\", \"kind\": 7, \"metadata\": {\"name\": \"x\"}}"),
        ("kind null", "{\"apiVersion\": \"v1\", \"kind\": null}"),
        ("another kind", "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"x\"}}"),
        (
            "another version",
            "{\"apiVersion\": \"v9\", \"kind\": \"Service\", \"metadata\": {\"name\": \"x\"}}",
        ),
        ("a list without items", "{\"apiVersion\": \"v1\", \"kind\": \"List\"}"),
        ("a list whose items are a map", "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": {}}"),
        (
            "a list of scalars",
            "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [1, null, \"x\", [], {}]}",
        ),
        (
            "a list of lists",
            "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{\"apiVersion\": \"v1\", \"kind\": \"List\"}]}",
        ),
        ("a byte order mark alone", "\u{feff}"),
    ] {
        add(what, text.as_bytes().to_vec(), false);
    }
    all
}
