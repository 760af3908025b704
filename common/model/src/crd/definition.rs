//! CustomResourceDefinitions of apiextensions.k8s.io/v1, from the Rust types.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, CiliumNode};

const GROUP: &str = "cilium.io";

/// The label of a definition that says how new it is, and how new Portway's are (semantic version). Cilium replaces a
/// definition whose version is below its own, which are above 1: so it does with Portway's on the way back, and Portway
/// leaves Cilium's as they are, which have every field that Portway needs. A change of any definition needs another
/// version: `definition/versions.txt`.
pub const SCHEMA_VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";
pub const SCHEMA_VERSION: &str = "0.1.0";

/// A kind that has a definition.
pub trait Resource {
    const DEFINITION: Definition;
}

/// What of a definition is not in the type's fields.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    pub kind: &'static str,
    /// Lower case.
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    pub version: &'static str,
    pub is_namespaced: bool,
    /// `status` is a subresource, with nothing in it that Portway knows.
    pub has_status: bool,
    /// Fields at the top that an object must have.
    pub required: &'static [&'static str],
    pub columns: &'static [Column],
}

/// What `kubectl get` shows.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `date`.
    pub kind: &'static str,
    pub path: &'static str,
    pub description: &'static str,
    /// Above 0 only with `-o wide`.
    pub priority: u8,
}

impl Column {
    pub(super) const AGE: Self = Self {
        name: "Age",
        kind: "date",
        path: ".metadata.creationTimestamp",
        description: "How long the object has been there",
        priority: 0,
    };
}

impl Definition {
    /// `cilium.io/v2`.
    pub fn api_version(&self) -> String {
        format!("{GROUP}/{}", self.version)
    }

    /// `ciliumnodes.cilium.io`.
    pub fn name(&self) -> String {
        format!("{}.{GROUP}", self.plural)
    }

    /// The path of all objects of the kind, in all namespaces.
    pub fn path(&self) -> String {
        format!("/apis/{GROUP}/{}/{}", self.version, self.plural)
    }

    /// The path of the objects in `namespace`, which counts for kinds in namespaces alone.
    pub fn path_in(&self, namespace: &str) -> String {
        if self.is_namespaced {
            format!("/apis/{GROUP}/{}/namespaces/{namespace}/{}", self.version, self.plural)
        } else {
            self.path()
        }
    }

    /// The path of one object.
    pub fn path_of(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path_in(namespace))
    }

    /// The CustomResourceDefinition of a kind whose objects are `T`.
    fn object<T: JsonSchema>(&self) -> Value {
        let mut version = json!({
            "name": self.version,
            "served": true,
            "storage": true,
            "schema": {"openAPIV3Schema": self.schema::<T>()},
        });
        if !self.columns.is_empty() {
            let columns: Vec<_> = self.columns.iter().map(Column::object).collect();
            set(&mut version, "additionalPrinterColumns", Value::from(columns));
        }
        if self.has_status {
            set(&mut version, "subresources", json!({"status": {}}));
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name(), "labels": {SCHEMA_VERSION_LABEL: SCHEMA_VERSION}},
            "spec": {
                "group": GROUP,
                "names": {
                    "categories": ["cilium"],
                    "kind": self.kind,
                    "listKind": format!("{}List", self.kind),
                    "plural": self.plural,
                    "shortNames": self.short_names,
                    "singular": self.kind.to_lowercase(),
                },
                "scope": if self.is_namespaced { "Namespaced" } else { "Cluster" },
                "versions": [version],
            },
        })
    }

    /// A structural schema: the API server takes no references and no defaults in it.
    fn schema<T: JsonSchema>(&self) -> Value {
        let settings = SchemaSettings::openapi3().with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        });
        let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
        tidy(&mut schema);
        if !self.required.is_empty() {
            set(&mut schema, "required", json!(self.required));
        }
        if self.has_status
            && let Some(properties) = schema.get_mut("properties")
        {
            set(
                properties,
                "status",
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            );
        }
        schema
    }
}

impl Column {
    fn object(&self) -> Value {
        let Self { name, kind, path, description, priority } = *self;
        let mut column = json!({"name": name, "type": kind, "jsonPath": path, "description": description});
        if priority > 0 {
            set(&mut column, "priority", json!(priority));
        }
        column
    }
}

/// The definitions of all kinds, each with the name of its file, in the order of the names.
pub fn definitions() -> Vec<(String, Value)> {
    fn of<T: Resource + JsonSchema>() -> (String, Value) {
        let definition = T::DEFINITION;
        (format!("{}.yaml", definition.name()), definition.object::<T>())
    }
    let mut all =
        vec![of::<CiliumIdentity>(), of::<CiliumEndpoint>(), of::<CiliumEndpointSlice>(), of::<CiliumNode>()];
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

/// The API server knows the fields of `metadata`, and refuses a schema that says more.
pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object"})
}

/// Takes out what a structural schema must not have or what says nothing.
fn tidy(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for field in ["$schema", "title", "default"] {
        fields.remove(field);
    }
    // Docs are wrapped for the source; here a paragraph is a line.
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(field) {
            tidy(inner);
        }
    }
}

fn set(object: &mut Value, key: &str, value: Value) {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Value::Object(fields) = object {
        fields.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests;
