//! The OpenAPI document: the contract, with its comments, as HTTP clients see it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost_reflect::{EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::{
    GATEWAY_TEXT,
    api::{Api, ApiError, Route, is_well_known},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where the schemas of messages stand.
const SCHEMAS: &str = "#/components/schemas/";

/// The document as text, with a newline at its end.
pub fn openapi() -> Result<String, ApiError> {
    let api = Api::read()?;
    let mut text = serde_json::to_string_pretty(&document(&api)).unwrap_or_default();
    text.push('\n');
    Ok(text)
}

/// The comments of a file, by the path of what they stand before.
pub(super) struct Comments(HashMap<(String, Vec<i32>), String>);

impl Comments {
    pub(super) fn read(api: &Api) -> Self {
        let mut comments = HashMap::new();
        for file in api.pool.files() {
            let Some(info) = &file.file_descriptor_proto().source_code_info else { continue };
            for location in &info.location {
                if let Some(comment) = &location.leading_comments {
                    let lines: Vec<_> = comment.lines().map(str::trim).collect();
                    comments.insert(
                        (file.name().to_owned(), location.path.clone()),
                        lines.join("\n").trim().to_owned(),
                    );
                }
            }
        }
        Self(comments)
    }

    pub(super) fn of(&self, file: &FileDescriptor, path: &[i32]) -> String {
        self.0.get(&(file.name().to_owned(), path.to_vec())).cloned().unwrap_or_default()
    }
}

fn document(api: &Api) -> Value {
    let comments = Comments::read(api);
    let mut writer = Writer { api, comments, wanted: BTreeSet::new(), sent: sent_messages(api) };
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut tags = BTreeMap::new();
    for route in &api.routes {
        let service = route.method.parent_service();
        let about = writer.comments.of(&service.parent_file(), service.path());
        tags.insert(service.name().to_owned(), json!({ "name": service.name(), "description": about }));
        let operation = writer.operation(route);
        let verb = route.http_method.as_str().to_ascii_lowercase();
        paths.entry(&route.template).or_default().insert(verb, operation);
    }
    let mut schemas = writer.schemas();
    schemas.insert("Error".to_owned(), error_schema());
    let mut paths: Map<String, Value> =
        paths.into_iter().map(|(path, operations)| (path.to_owned(), operations.into())).collect();
    for (path, summary) in [
        ("/healthz", "Whether the process lives."),
        (
            "/readyz",
            "Whether to send anything here: not before a shutdown, and while the database is away or takes no writes.",
        ),
    ] {
        paths.insert(path.to_owned(), health_operation(path, summary));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Orbit",
            "version": VERSION,
            "description": GATEWAY_TEXT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "tags": tags.into_values().collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
        // Without credentials configured everybody may do everything, and the header means nothing.
        "security": [{}, { "bearer": [] }],
    })
}

fn health_operation(path: &str, summary: &str) -> Value {
    let text = json!({ "text/plain": { "schema": { "type": "string" } } });
    json!({ "get": {
        "operationId": path.trim_start_matches('/'),
        "summary": summary,
        "responses": {
            "200": { "description": "Yes.", "content": text },
            "default": error_response(),
        },
        "security": [{}],
    }})
}

fn error_response() -> Value {
    json!({
        "description": "An error. Its code is the one that google.rpc.Code documents for its status.",
        "headers": { "Retry-After": {
            "description": "Seconds to wait before the same is sent again.",
            "schema": { "type": "integer", "minimum": 1 },
        }},
        "content": { "application/json": { "schema": { "$ref": format!("{SCHEMAS}Error") } } },
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "status", "message", "details"],
            "properties": {
                "code": { "type": "integer", "description": "The HTTP code." },
                "status": { "type": "string", "description": "The name of the google.rpc.Code." },
                "message": { "type": "string", "description": "For people: what is wrong and what to do." },
                "details": {
                    "type": "array",
                    "description": "One is a google.rpc.ErrorInfo with domain `orbit` and a stable `reason`.",
                    "items": {
                        "type": "object",
                        "required": ["@type"],
                        "properties": { "@type": { "type": "string" } },
                    },
                },
            },
        }},
    })
}

struct Writer<'a> {
    api: &'a Api,
    comments: Comments,
    /// The messages and enums that are referred to.
    wanted: BTreeSet<String>,
    /// The messages that stand in bodies of requests.
    sent: BTreeSet<String>,
}

/// The messages that stand in bodies of requests, at any depth.
fn sent_messages(api: &Api) -> BTreeSet<String> {
    let mut sent = BTreeSet::new();
    let mut open: Vec<_> = api.routes.iter().filter(|r| r.has_body).map(|r| r.method.input()).collect();
    while let Some(message) = open.pop() {
        if !is_well_known(&message) && sent.insert(message.name().to_owned()) {
            open.extend(message.fields().filter_map(|field| field.kind().as_message().cloned()));
        }
    }
    sent
}

impl Writer<'_> {
    fn operation(&mut self, route: &Route) -> Value {
        let (method, input) = (&route.method, route.method.input());
        let in_path: Vec<_> = route.path_fields().cloned().collect();
        let mut parameters: Vec<_> = in_path.iter().map(|field| self.parameter(field, "path")).collect();
        let others: Vec<_> = input.fields().filter(|field| !in_path.contains(field)).collect();
        let mut operation = json!({
            "operationId": method.name(),
            "tags": [method.parent_service().name()],
            "description": self.comments.of(&method.parent_service().parent_file(), method.path()),
            "responses": {
                "200": {
                    "description": "Done.",
                    "content": { "application/json": { "schema": self.reference(method.output().name()) } },
                },
                "default": error_response(),
            },
        });
        if route.has_body {
            if input.get_field_by_name("idempotency_key").is_some() {
                parameters.extend(submit_headers());
            }
            let about = self.comments.of(&input.parent_file(), input.path());
            let schema = self.object(&others, &about, true);
            operation["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        } else {
            parameters.extend(others.iter().map(|field| self.parameter(field, "query")));
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }

    fn parameter(&mut self, field: &FieldDescriptor, place: &str) -> Value {
        let mut schema = self.value(field);
        if place == "path" {
            schema["minLength"] = 1.into();
        }
        json!({
            "name": field.name(), "in": place, "required": place == "path",
            "description": self.comment(field), "schema": schema,
        })
    }

    fn comment(&self, field: &FieldDescriptor) -> String {
        self.comments.of(&field.parent_message().parent_file(), field.path())
    }

    fn object(&mut self, fields: &[FieldDescriptor], about: &str, is_sent: bool) -> Value {
        let properties: Map<String, Value> = fields
            .iter()
            .map(|field| {
                let value = self.value(field);
                let mut value = match field.kind() {
                    Kind::Enum(_) if is_sent && !field.is_list() => or_number(&value),
                    _ if is_sent => or_null(value),
                    _ => value,
                };
                value["description"] = self.comment(field).into();
                (field.name().to_owned(), value)
            })
            .collect();
        let mut object = json!({ "type": "object", "description": about, "properties": properties });
        if is_sent {
            object["additionalProperties"] = false.into();
        }
        object
    }

    fn value(&mut self, field: &FieldDescriptor) -> Value {
        let one = if self.api.texts.holds(field) { json!({}) } else { self.kind(&field.kind()) };
        if field.is_list() { json!({ "type": "array", "items": one }) } else { one }
    }

    fn kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Bool => json!({ "type": "boolean" }),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                json!({ "type": "integer", "format": "int32", "minimum": i32::MIN, "maximum": i32::MAX })
            }
            Kind::Uint32 | Kind::Fixed32 => {
                json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX })
            }
            // Written as texts, as they can pass what a double holds.
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({ "type": "string", "format": "int64" }),
            Kind::Uint64 | Kind::Fixed64 => json!({ "type": "string", "format": "uint64" }),
            Kind::Float | Kind::Double => json!({ "type": "number" }),
            Kind::String => json!({ "type": "string" }),
            Kind::Bytes => json!({ "type": "string", "format": "byte" }),
            Kind::Message(message) => match message.full_name() {
                "google.protobuf.Timestamp" => json!({ "type": "string", "format": "date-time" }),
                "google.rpc.Status" => rpc_status(),
                _ => self.reference(message.name()),
            },
            Kind::Enum(names) => self.reference(names.name()),
        }
    }

    fn reference(&mut self, name: &str) -> Value {
        self.wanted.insert(name.to_owned());
        json!({ "$ref": format!("{SCHEMAS}{name}") })
    }

    /// The schemas that are referred to, and those these refer to.
    fn schemas(&mut self) -> Map<String, Value> {
        let mut schemas = Map::new();
        while let Some(name) = self.wanted.iter().find(|name| !schemas.contains_key(*name)).cloned() {
            let schema = self.schema(&format!("orbit.v1.{name}"));
            schemas.insert(name, schema);
        }
        schemas
    }

    fn schema(&mut self, full_name: &str) -> Value {
        if let Some(message) = self.api.pool.get_message_by_name(full_name) {
            return self.message(&message);
        }
        let names = self.api.pool.get_enum_by_name(full_name);
        names.map_or_else(|| json!({}), |names| self.names(&names))
    }

    fn message(&mut self, message: &MessageDescriptor) -> Value {
        debug_assert!(!is_well_known(message));
        let about = self.comments.of(&message.parent_file(), message.path());
        let is_sent = self.sent.contains(message.name());
        self.object(&message.fields().collect::<Vec<_>>(), &about, is_sent)
    }

    fn names(&self, names: &EnumDescriptor) -> Value {
        let file = names.parent_file();
        let mut about = self.comments.of(&file, names.path());
        for value in names.values() {
            let meaning = self.comments.of(&file, value.path());
            about.extend(["\n\n- `", value.name(), "`: ", &meaning]);
        }
        let values: Vec<_> = names.values().map(|value| value.name().to_owned()).collect();
        json!({ "type": "string", "description": about, "enum": values })
    }
}

/// In a request `null` is the same as nothing at all, and a number may stand in a text.
fn or_null(mut schema: Value) -> Value {
    if let Some(name) = schema["type"].as_str().map(str::to_owned) {
        schema["type"] =
            if name == "integer" { json!([name, "string", "null"]) } else { json!([name, "null"]) };
    } else if !schema["$ref"].is_null() {
        schema = json!({ "anyOf": [schema, { "type": "null" }] });
    }
    schema
}

/// In a request the number of an enum's value stands for its name.
fn or_number(schema: &Value) -> Value {
    json!({ "anyOf": [schema, { "type": "integer" }, { "type": "null" }] })
}

/// The status of one item.
fn rpc_status() -> Value {
    json!({
        "type": "object",
        "description": "The item's own google.rpc.Status; code 0 means done.",
        "properties": {
            "code": { "type": "integer", "format": "int32" },
            "message": { "type": "string" },
            "details": { "type": "array", "items": { "type": "object" } },
        },
    })
}

/// What a submit may say in its headers.
fn submit_headers() -> [Value; 2] {
    [
        json!({
            "name": "Idempotency-Key", "in": "header", "schema": { "type": "string" },
            "description": "Sets `idempotency_key`. If the body has it too, the two must be the same.",
        }),
        json!({
            "name": "Prefer", "in": "header", "schema": { "type": "string", "pattern": "^wait=[0-9]{1,2}$" },
            "example": "wait=10",
            "description": "`wait=10` answers with the finished task, in the FULL view, if it finishes within 10 \
                            seconds; else with the task as it is by then. At most 60.",
        }),
    ]
}
