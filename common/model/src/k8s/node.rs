use serde_json::Value;

use super::decode::{self, Kind, LONGEST_NAME};
use super::field::{Misfit, Refusals, Shape, misfit};
use super::{Names, Node, Object, raw};

impl Kind for Node {
    type Raw<'a> = raw::Node<'a>;
    const NAME: &'static str = "Node";
    const API_VERSION: &'static str = "v1";
    const SHAPE: Shape = Shape {
        lists: &[],
        fields: &["metadata.annotations", "metadata.creationTimestamp", "metadata.uid", "metadata.namespace"],
        never_absent: None,
    };

    fn misfit(value: &Value) -> Option<Misfit> {
        misfit::<raw::Node<'_>>(value)
    }

    fn object(raw: raw::Node<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        let metadata = raw.metadata.as_ref();
        let name = metadata.and_then(|m| m.name.as_deref()).unwrap_or("");
        refusals.name = name.to_owned();
        decode::check_name("metadata.name", name, LONGEST_NAME, refusals)?;
        let zone = metadata.and_then(|m| m.labels.as_ref()).and_then(|l| l.zone.as_deref());
        let zone = zone.filter(|zone| !zone.is_empty()).map(|zone| names.get(zone));
        Some(Object::Node(Self { name: names.get(name), zone }.into()))
    }
}
