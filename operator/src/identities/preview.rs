use std::collections::BTreeSet;
use std::sync::Arc;

use portway_model::identity::{Identities, Standing};
use serde_json::json;

use super::Config;
use super::queue::Rank;
use crate::observed::{Kind, Observed};
use crate::wishes::Wishes;
use crate::write::Write;

/// The identities that would be created now, the first that go first, for people: the real ones are tentative until a
/// read has shown that they are alone.
pub fn preview(config: Config, observed: &Observed) -> Vec<Write> {
    let Config { range, rules } = config;
    let mut wishes = Wishes::new(rules);
    wishes.update(observed);
    let mut known = Identities::default();
    for object in observed.identities.iter() {
        known.apply(Arc::clone(&object.identity));
    }
    let missing = wishes.iter().filter(|(labels, _)| known.number_of(labels).is_none());
    let missing: BTreeSet<_> = missing
        .map(|(labels, wish)| (Rank { urgency: wish.urgency, since: wish.since }, labels, wish.pods))
        .collect();
    let mut chosen = BTreeSet::new();
    let mut writes = Vec::new();
    for (_, labels, pods) in missing {
        let mut numbers = range.numbers_from(range.home_of(labels));
        let Some(number) = numbers.find(|number| !known.is_taken(*number) && !chosen.contains(number)) else {
            break;
        };
        chosen.insert(number);
        let security: serde_json::Map<_, _> =
            labels.iter().map(|label| (label.entry(), json!(&*label.value))).collect();
        let body = json!({
            "metadata": {"annotations": {portway_model::identity::CLAIM: Standing::New.annotation()}},
            "security-labels": security,
        });
        let reason = format!("{pods} pods have these labels, and no identity does");
        writes.push(Write::create(Kind::CiliumIdentity, number.to_string(), body, reason));
    }
    writes
}
