//! Unusable values: naming them by their path, and taking the smallest part of an object that makes sense out.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::Reject;

/// What was refused of one object.
pub(super) struct Refusals<'r> {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Paths that hold null because [`mend`] put it there.
    emptied: BTreeSet<String>,
    /// Paths of what is refused as soon as the rest of it was read.
    spoiled: BTreeSet<String>,
    out: &'r mut Vec<Reject>,
}

impl<'r> Refusals<'r> {
    pub(super) const fn new(kind: &'static str, out: &'r mut Vec<Reject>) -> Self {
        Self { kind, name: String::new(), emptied: BTreeSet::new(), spoiled: BTreeSet::new(), out }
    }

    pub(super) fn push(&mut self, field: impl Into<String>, value: &str, reason: impl Into<String>) {
        self.out.push(Reject {
            kind: self.kind.to_owned(),
            name: self.name.clone(),
            field: field.into(),
            value: Reject::quote(value),
            reason: reason.into(),
        });
    }

    /// Names a null in a list, unless it stands for something that was named already.
    pub(super) fn push_null(&mut self, field: String) {
        if !self.emptied.contains(&field) {
            self.push(field, "null", "is null");
        }
    }

    /// Names a field that is not there, unless something else was there that was named already.
    pub(super) fn push_missing(&mut self, field: String, reason: String) {
        if !self.emptied.contains(&field) {
            self.push(field, "", reason);
        }
    }

    /// Whether a field of what is at `path` was named and is null for that.
    pub(super) fn is_spoiled(&self, path: &str) -> bool {
        self.spoiled.contains(path)
    }
}

/// What of a kind can be refused on its own.
pub(super) struct Shape {
    /// Lists whose elements are.
    pub(super) lists: &'static [List],
    /// Fields that are (patterns). What is refused elsewhere refuses the object.
    pub(super) fields: &'static [&'static str],
    /// A list that must not be taken for absent if it is refused: it becomes a list of one null.
    pub(super) never_absent: Option<&'static str>,
}

pub(super) struct List {
    pub(super) path: &'static [&'static str],
    /// What is wrong with an element.
    pub(super) misfit: fn(&Value) -> Option<Misfit>,
    /// Fields of the element that are refused without it (patterns).
    pub(super) fields: &'static [&'static str],
    /// What is read to its end, with null for each misfit in it, before it is refused: its other fields may be wrong
    /// as well (patterns; "" is the element). Whoever reads it asks [`Refusals::is_spoiled`].
    pub(super) read_on: &'static [&'static str],
}

impl List {
    /// Elements are refused whole, for the first thing that is wrong with them.
    pub(super) const fn of(path: &'static [&'static str], misfit: fn(&Value) -> Option<Misfit>) -> Self {
        Self { path, misfit, fields: &[], read_on: &[] }
    }
}

/// Where and why a value is not what it should be.
pub(super) struct Misfit {
    steps: Vec<Step>,
    problem: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Why `value` is no `T`. O(value).
pub(super) fn misfit<'v, T: Deserialize<'v>>(value: &'v Value) -> Option<Misfit> {
    let error = serde_path_to_error::deserialize::<_, T>(value).err()?;
    let steps = error
        .path()
        .iter()
        .map_while(|segment| match segment {
            Segment::Seq { index } => Some(Step::Index(*index)),
            Segment::Map { key } => Some(Step::Key(key.clone())),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect();
    // The words for what people write, not for what it is read into.
    let problem = error.inner().to_string().replace("expected i64", "expected a whole number");
    let problem = problem.replace("a sequence", "a list").replace(": sequence,", ": list,");
    Some(Misfit { steps, problem: problem.replace(": map,", ": object,") })
}

/// Takes out of `object` what keeps it from being a `T`, and names it. `false` if nothing useful is left.
///
/// O(object) for each refused field that is not in a list, O(element) for those that are.
pub(super) fn mend(
    object: &mut Value,
    shape: &Shape,
    whole: fn(&Value) -> Option<Misfit>,
    refusals: &mut Refusals<'_>,
) -> bool {
    for list in shape.lists {
        let pointer: String = list.path.iter().map(|key| format!("/{key}")).collect();
        let Some(Value::Array(elements)) = object.pointer_mut(&pointer) else {
            continue;
        };
        for (index, element) in elements.iter_mut().enumerate() {
            let path = format!("{}[{index}]", list.path.join("."));
            while let Some(misfit) = (list.misfit)(element) {
                if element.is_null() {
                    break;
                }
                if !read_on(element, &path, &misfit, list, refusals) {
                    refuse(element, &path, misfit, list.fields, None, refusals);
                }
            }
        }
    }
    while let Some(misfit) = whole(object) {
        let unit = refuse(object, "", misfit, shape.fields, shape.never_absent, refusals);
        if unit == Refused::All {
            return false;
        }
    }
    true
}

/// Puts null where the misfit is, if it is inside of what is read to its end.
fn read_on(
    element: &mut Value,
    prefix: &str,
    misfit: &Misfit,
    list: &List,
    refusals: &mut Refusals<'_>,
) -> bool {
    let steps = misfit.steps.as_slice();
    let Some(unit) = unit(element, steps, list.fields, 0) else { return false };
    let is_inside = unit.len() < steps.len() && list.read_on.contains(&pattern(unit).as_str());
    let Some(place) = at_mut(element, steps).filter(|place| is_inside && !place.is_null()) else {
        return false;
    };
    refusals.push(join(prefix, steps), &quote(place), misfit.problem.clone());
    refusals.emptied.insert(join(prefix, steps));
    refusals.spoiled.insert(join(prefix, unit));
    *place = Value::Null;
    true
}

/// The longest part of `steps`, of `least` or more, that is among `fields` and not null; none of them is all of it.
fn unit<'s>(value: &Value, steps: &'s [Step], fields: &[&str], least: usize) -> Option<&'s [Step]> {
    (least..=steps.len()).rev().filter_map(|len| steps.get(..len)).find(|steps| {
        let is_unit = steps.is_empty() || fields.contains(&pattern(steps).as_str());
        is_unit && at(value, steps).is_some_and(|value| !value.is_null())
    })
}

#[derive(PartialEq, Eq)]
enum Refused {
    Field,
    All,
}

/// Puts null where the smallest part of `value` is that contains the misfit and is in `fields`; else into all of it.
fn refuse(
    value: &mut Value,
    prefix: &str,
    misfit: Misfit,
    fields: &[&str],
    never_absent: Option<&str>,
    refusals: &mut Refusals<'_>,
) -> Refused {
    let Misfit { steps, problem } = misfit;
    let found = at(value, &steps).map(quote).unwrap_or_default();
    let whole_path = join(prefix, &steps);
    let unit = unit(value, &steps, fields, 1);
    refusals.push(whole_path, &found, problem);
    let Some(steps) = unit else {
        refusals.emptied.insert(prefix.to_owned());
        *value = Value::Null;
        return Refused::All;
    };
    let mut emptied = join(prefix, steps);
    let mut replacement = Value::Null;
    if never_absent == Some(pattern(steps).as_str()) {
        emptied.push_str("[0]");
        replacement = Value::Array(vec![Value::Null]);
    }
    refusals.emptied.insert(emptied);
    if let Some(place) = at_mut(value, steps) {
        *place = replacement;
    }
    Refused::Field
}

fn quote(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

fn at<'v>(value: &'v Value, steps: &[Step]) -> Option<&'v Value> {
    steps.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

fn at_mut<'v>(value: &'v mut Value, steps: &[Step]) -> Option<&'v mut Value> {
    steps.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    })
}

fn join(prefix: &str, steps: &[Step]) -> String {
    let mut path = prefix.to_owned();
    for step in steps {
        match step {
            Step::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            Step::Index(index) => {
                // Writing to a String cannot fail.
                let _ = write!(path, "[{index}]");
            }
        }
    }
    path
}

/// The path with `[]` for every index.
fn pattern(steps: &[Step]) -> String {
    let mut pattern = String::new();
    for step in steps {
        match step {
            Step::Key(key) => {
                if !pattern.is_empty() {
                    pattern.push('.');
                }
                pattern.push_str(key);
            }
            Step::Index(_) => pattern.push_str("[]"),
        }
    }
    pattern
}
