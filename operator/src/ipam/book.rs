//! What the pool object says: which CiliumNode has claimed which CIDRs.

use std::collections::BTreeMap;

use portway_model::node::Prefix;
use serde_json::{Map, Value};

/// Keys of `data` that are no node's: names of nodes begin with a letter or a digit.
const EPOCH: &str = "_epoch";
const AS_OF: &str = "_as-of";
const LAST: &str = "_last";
const SUM: &str = "_sum";

/// `data` of the pool object: `<node>: <CIDR>,<CIDR> <UID of the CiliumNode>`, and four keys of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Book {
    /// By the name of the node. A CIDR stays with it until both its objects are gone.
    pub(super) claims: BTreeMap<String, Claim>,
    /// `None`: the object is new, or has been mended.
    pub(super) epoch: Option<Epoch>,
    /// Whoever knows CiliumNodes up to this version knows that one of a claim is gone where it does not see it.
    pub(super) as_of: u64,
    /// The one of each family that was claimed last: the next one is looked for after it.
    pub(super) last: Vec<Prefix>,
    /// Somebody has changed it, and may have taken claims out.
    pub(super) is_damaged: bool,
}

/// What a node has claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// Of the CiliumNode, so that it is no later one's of the same name.
    pub(super) uid: String,
    pub(super) cidrs: Vec<Prefix>,
}

/// Since when the object knows of all claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    /// A CiliumNode that has not changed since may still get a CIDR that an earlier object knew of.
    pub(super) version: u64,
    /// Seconds since 1970.
    pub(super) began: i64,
}

impl Book {
    pub(super) fn read(data: &BTreeMap<String, String>) -> Self {
        let mut book = Self::default();
        for (key, value) in data.iter().filter(|(key, _)| !key.starts_with('_')) {
            match claim(value) {
                Some(claim) => drop(book.claims.insert(key.clone(), claim)),
                None => book.is_damaged = true,
            }
        }
        let text = |key: &str| data.get(key).map(String::as_str);
        book.epoch = text(EPOCH).and_then(epoch);
        let as_of = text(AS_OF).and_then(|text| text.parse().ok());
        book.as_of = as_of.unwrap_or(0);
        let last = text(LAST).map(cidrs);
        book.is_damaged |= last == Some(None);
        book.last = last.flatten().unwrap_or_default();
        book.is_damaged |= as_of.is_none() || text(SUM) != Some(&*sum(data));
        book
    }

    /// A new one, for somebody has changed this: what he took out is in it again, as it was `known`, beside what he put in.
    pub(super) fn mended(&self, known: &Self) -> Self {
        let mut claims = known.claims.clone();
        for (node, put_in) in &self.claims {
            let claim = claims.entry(node.clone()).or_insert_with(|| put_in.clone());
            let more: Vec<_> =
                put_in.cidrs.iter().filter(|cidr| !claim.cidrs.contains(cidr)).copied().collect();
            claim.cidrs.extend(more);
        }
        let last = if known.last.is_empty() { &self.last } else { &known.last };
        Self { claims, last: last.clone(), ..Self::default() }
    }

    /// `data` of an object that says it.
    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let claims = self.claims.iter().map(|(node, claim)| (node.clone(), claim.written()));
        let mut data: BTreeMap<_, _> = claims.collect();
        if let Some(Epoch { version, began }) = self.epoch {
            data.insert(EPOCH.to_owned(), format!("{version} {began}"));
        }
        data.insert(AS_OF.to_owned(), self.as_of.to_string());
        if !self.last.is_empty() {
            data.insert(LAST.to_owned(), written(&self.last));
        }
        data.insert(SUM.to_owned(), sum(&data));
        data
    }
}

impl Claim {
    fn written(&self) -> String {
        format!("{} {}", written(&self.cidrs), self.uid)
    }
}

fn written(cidrs: &[Prefix]) -> String {
    cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn cidrs(text: &str) -> Option<Vec<Prefix>> {
    text.split(',').filter(|cidr| !cidr.is_empty()).map(Prefix::parse).collect()
}

/// A merge patch of `data` that makes the one the other.
pub(super) fn difference(
    from: &BTreeMap<String, String>,
    to: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let gone = from.keys().filter(|key| !to.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = to.iter().filter(|(key, value)| from.get(*key) != Some(*value));
    gone.chain(changed.map(|(key, value)| (key.clone(), Value::from(value.clone())))).collect()
}

fn claim(text: &str) -> Option<Claim> {
    let (text, uid) = text.split_once(' ')?;
    Some(Claim { cidrs: cidrs(text)?, uid: uid.to_owned() })
}

fn epoch(text: &str) -> Option<Epoch> {
    let (version, began) = text.split_once(' ')?;
    Some(Epoch { version: version.parse().ok()?, began: began.parse().ok()? })
}

/// Over everything else: what changes the object without it is no operator. FNV-1a.
fn sum(data: &BTreeMap<String, String>) -> String {
    let fields = data.iter().filter(|(key, _)| *key != SUM);
    let bytes = fields.flat_map(|(key, value)| [key.as_bytes(), b"\0", value.as_bytes(), b"\0"]);
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.flatten().fold(0xcbf2_9ce4_8422_2325, add))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Book {
        let cidrs = ["10.0.1.0/24", "fd00::1:0/112"].map(|text| Prefix::parse(text).unwrap()).to_vec();
        let claim = Claim { uid: "9f5c".to_owned(), cidrs };
        let last = claim.cidrs.clone();
        let claims = BTreeMap::from([("a.example".to_owned(), claim)]);
        Book { claims, epoch: Some(Epoch { version: 7, began: 9 }), as_of: 5, last, is_damaged: false }
    }

    #[test]
    fn what_is_written_is_read() {
        let data = book().data();
        assert_eq!(data["a.example"], "10.0.1.0/24,fd00::1:0/112 9f5c");
        assert_eq!(Book::read(&data), book());
        let new = Book { epoch: None, last: Vec::new(), ..book() };
        assert_eq!(Book::read(&new.data()), new);
    }

    #[test]
    fn whatever_somebody_changes_is_damage() {
        let changes: [fn(&mut BTreeMap<String, String>); 7] = [
            |data| drop(data.insert(LAST.to_owned(), "10.0.9.0/24".to_owned())),
            |data| drop(data.remove("a.example")),
            |data| drop(data.insert("a.example".to_owned(), "10.0.2.0/24 9f5c".to_owned())),
            |data| drop(data.insert("b".to_owned(), "10.0.2.0/24 9f5d".to_owned())),
            |data| drop(data.insert("b".to_owned(), "x".to_owned())),
            |data| drop(data.insert(AS_OF.to_owned(), "4".to_owned())),
            |data| drop(data.remove(SUM)),
        ];
        for change in changes {
            let mut data = book().data();
            change(&mut data);
            assert!(Book::read(&data).is_damaged, "{data:?}");
        }
        assert!(Book::read(&BTreeMap::new()).is_damaged);
    }

    #[test]
    fn a_patch_says_what_differs_and_no_more() {
        let (from, mut to) = (book(), book());
        to.claims.clear();
        to.as_of = 6;
        let patch = difference(&from.data(), &to.data());
        let keys: Vec<_> = patch.keys().map(String::as_str).collect();
        assert_eq!(keys, ["_as-of", "_sum", "a.example"]);
        assert_eq!(patch["a.example"], Value::Null);
    }

    #[test]
    fn the_claims_of_five_thousand_nodes_fit_into_an_object() {
        let mut book = book();
        let claim = Claim {
            uid: "9f5c2a61-7d1e-4c58-9a0f-3b6de1c4f210".to_owned(),
            ..book.claims["a.example"].clone()
        };
        for number in 0..5000 {
            book.claims.insert(
                format!("ip-10-100-{number:05}.eu-central-1.compute.internal.example"),
                claim.clone(),
            );
        }
        let size: usize = book.data().iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(size < 1 << 20, "{size}");
    }
}
