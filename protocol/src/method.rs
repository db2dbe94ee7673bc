//! One declaration a method: its name, what it does, its params and its result.
//!
//! Dispatch, the OpenRPC document, the reference pages and the typed client are all made from the same declaration,
//! so they cannot disagree.

use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// A method of the socket.
pub trait Method: Send + Sync + 'static {
    /// The name on the wire: `<surface>/<verb>`.
    const NAME: &'static str;
    /// One sentence in the third person.
    const SUMMARY: &'static str;
    /// Whether it changes anything. Such methods take `idempotency_key` where they make something new.
    const MUTATES: bool;
    /// The params. Unknown fields are ignored, so an old daemon serves a new client.
    type Params: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
    /// The result.
    type Result: Serialize + DeserializeOwned + JsonSchema + Send + 'static;
}

/// What is known about a method without its types.
#[derive(Clone, Copy)]
pub struct MethodDescriptor {
    /// The name on the wire.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Whether it changes anything.
    pub mutates: bool,
    params: fn(&mut SchemaGenerator) -> schemars::Schema,
    result: fn(&mut SchemaGenerator) -> schemars::Schema,
}

impl MethodDescriptor {
    /// Describes the method `M`.
    pub fn of<M: Method>() -> Self {
        Self {
            name: M::NAME,
            summary: M::SUMMARY,
            mutates: M::MUTATES,
            params: |generator| generator.subschema_for::<M::Params>(),
            result: |generator| generator.subschema_for::<M::Result>(),
        }
    }
}

/// Declares methods: `method!(/// docs  Name = "surface/verb", mutates, Params => Result, "Summary.");`
#[macro_export]
macro_rules! method {
    ($(#[$meta:meta])* $name:ident = $wire:literal, $mutates:literal, $params:ty => $result:ty, $summary:literal) => {
        $(#[$meta])*
        #[doc = $summary]
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl $crate::method::Method for $name {
            const NAME: &'static str = $wire;
            const SUMMARY: &'static str = $summary;
            const MUTATES: bool = $mutates;
            type Params = $params;
            type Result = $result;
        }
    };
}

/// Builds the OpenRPC document of `methods` (OpenRPC 1.3, <https://spec.open-rpc.org>), sorted by name.
pub fn openrpc_document(methods: &[MethodDescriptor], version: &str) -> Value {
    let mut generator = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let mut sorted: Vec<&MethodDescriptor> = methods.iter().collect();
    sorted.sort_by_key(|method| method.name);
    let described: Vec<Value> = sorted
        .iter()
        .map(|method| {
            let params = (method.params)(&mut generator);
            let result = (method.result)(&mut generator);
            json!({
                "name": method.name,
                "summary": method.summary,
                "paramStructure": "by-name",
                "x-mutates": method.mutates,
                "params": [{ "name": "params", "schema": params }],
                "result": { "name": "result", "schema": result },
            })
        })
        .collect();
    let schemas: Map<String, Value> = generator.take_definitions(true);
    json!({
        "openrpc": "1.3.2",
        "info": { "title": "Holdfast", "version": version },
        "methods": described,
        "components": { "schemas": schemas },
    })
}
