//! JSON to messages: field by field, so that every bad one is named.

use std::{collections::HashSet, fmt};

use prost_reflect::{
    DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _, Value,
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Number, value::RawValue};

use super::api::{JsonTexts, is_well_known};

/// The longest part of a name that is not ours which an error repeats, in characters.
const NAME_CHARS_MAX: usize = 64;

/// A bad field: its path, and what is wrong with it.
pub(super) type Problem = (String, String);

/// The entries of a JSON object, in order, their values as they are written.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Reads messages and collects what is wrong with them.
pub(super) struct Reader<'a> {
    texts: &'a JsonTexts,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(texts: &'a JsonTexts) -> Self {
        Self { texts, problems: Vec::new() }
    }

    /// Notes a bad field.
    pub(super) fn bad(&mut self, path: impl Into<String>, description: impl Into<String>) {
        self.problems.push((path.into(), description.into()));
    }

    /// Reads a message from a JSON object; an empty path stands for the whole body.
    pub(super) fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        json: &str,
        path: &str,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        let entries = match serde_json::from_str::<Entries<'_>>(json) {
            Ok(Entries(entries)) => entries,
            Err(error) => {
                let name = if path.is_empty() { "body" } else { path };
                self.bad(name, format!("must be a JSON object: {error}"));
                return message;
            }
        };
        let mut seen = HashSet::new();
        for (name, value) in entries {
            let Some(field) = field_of(descriptor, &name) else {
                let path = join(path, &shortened(&name));
                self.bad(path, format!("is no field of {}", descriptor.name()));
                continue;
            };
            let path = join(path, field.name());
            if !seen.insert(field.number()) {
                self.bad(path, "is given more than once");
                continue;
            }
            self.field(&mut message, &field, value.get(), &path);
        }
        message
    }

    /// Reads one field of a message.
    pub(super) fn field(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        json: &str,
        path: &str,
    ) {
        let value = if self.texts.holds(field) {
            Some(Value::String(json.to_owned()))
        } else if json == "null" {
            None // absent, as JSON forms of messages have it
        } else {
            self.value(message, field, json, path)
        };
        let Some(value) = value else { return };
        let others = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
        if let Some(other) = others.and_then(|oneof| oneof.fields().find(|other| message.has_field(other))) {
            self.bad(path, format!("is given beside {}, of which only one may be", other.name()));
            return;
        }
        message.set_field(field, value);
    }

    fn value(
        &mut self,
        message: &DynamicMessage,
        field: &FieldDescriptor,
        json: &str,
        path: &str,
    ) -> Option<Value> {
        match field.kind() {
            Kind::Message(inner) if !is_well_known(&inner) && !field.is_map() => {
                if !field.is_list() {
                    return Some(Value::Message(self.message(&inner, json, path)));
                }
                let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json) else {
                    self.bad(path, "must be a JSON array");
                    return None;
                };
                let item = |(i, item): (usize, &&RawValue)| {
                    Value::Message(self.message(&inner, item.get(), &format!("{path}[{i}]")))
                };
                Some(Value::List(items.iter().enumerate().map(item).collect()))
            }
            _ => match leaf(&message.descriptor(), field, json) {
                Ok(value) => value,
                Err(problem) => {
                    self.bad(path, problem);
                    None
                }
            },
        }
    }
}

/// Reads a field that holds no message of ours, by the rules of ProtoJSON.
fn leaf(
    descriptor: &MessageDescriptor,
    field: &FieldDescriptor,
    json: &str,
) -> Result<Option<Value>, String> {
    let number = (json.starts_with('"') && is_number(&field.kind())).then(|| unquoted(json));
    let json = match &number {
        None => json,
        Some(Some(number)) => number,
        Some(None) => return Err("must be a number".to_owned()),
    };
    let object = format!("{{\"{}\":{json}}}", field.name());
    let mut deserializer = serde_json::Deserializer::from_str(&object);
    let options = DeserializeOptions::new();
    match DynamicMessage::deserialize_with_options(descriptor.clone(), &mut deserializer, &options) {
        Ok(mut message) => Ok(message.take_field(field)),
        Err(error) => {
            // The place is one in the object above.
            let text = error.to_string();
            Err(text.split(" at line ").next().unwrap_or(&text).to_owned())
        }
    }
}

/// The number that a text holds, and nothing besides: ProtoJSON takes both for the same.
fn unquoted(json: &str) -> Option<String> {
    let text: String = serde_json::from_str(json).ok()?;
    let is_plain = !text.contains(char::is_whitespace) && serde_json::from_str::<Number>(&text).is_ok();
    is_plain.then_some(text)
}

/// Whether a field holds numbers that JSON's own can hold.
fn is_number(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Int32
            | Kind::Sint32
            | Kind::Sfixed32
            | Kind::Uint32
            | Kind::Fixed32
            | Kind::Float
            | Kind::Double
    )
}

/// The field of that name, in the form of the proto or in that of JSON.
pub(super) fn field_of(descriptor: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name))
}

/// A name that came from outside, fit for an error.
pub(super) fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::{super::api::Api, *};
    use crate::proto::{ResolveTaskRequest, SubmitTaskRequest};

    fn read<M: prost::Message + Default>(name: &str, json: &str) -> Result<M, Vec<Problem>> {
        let api = Api::read().expect("the contract");
        let descriptor = api.pool.get_message_by_name(&format!("orbit.v1.{name}")).expect("a message");
        let mut reader = Reader::new(&api.texts);
        let message = reader.message(&descriptor, json, "");
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        Ok(M::decode(message.encode_to_vec().as_slice()).expect("the same message"))
    }

    fn submission(json: &str) -> SubmitTaskRequest {
        read("SubmitTaskRequest", json).expect("read")
    }

    fn bad(json: &str) -> Vec<String> {
        let read = read::<SubmitTaskRequest>("SubmitTaskRequest", json).expect_err("refused");
        read.into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn both_forms_of_names_are_read() {
        let snake = submission(
            r#"{"queue_id":"q","retry":{"max_attempts":3},"recovery_safety":"RECOVERY_SAFETY_IDEMPOTENT"}"#,
        );
        let camel = submission(r#"{"queueId":"q","retry":{"maxAttempts":3},"recoverySafety":2}"#);
        assert_eq!(snake, camel);
        assert_eq!(snake.retry.and_then(|r| r.max_attempts), Some(3));
    }

    #[test]
    fn json_texts_are_kept_byte_for_byte() {
        for text in [
            r#"{"n":9007199254740993,"e":1E+400,"d":0.10,"d":1, "b" : [ ] }"#,
            r#""\u00e9\ud83d\ude00é""#,
            "null",
            r#"{"$serde_json::private::RawValue":"1"}"#,
            "{\n\t\"a\": 1\r\n}",
        ] {
            assert_eq!(submission(&format!("{{ \"payload\" :\n {text} }}")).payload, text);
        }
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(submission(&format!("{{\"payload\":{deep}}}")).payload, deep);
    }

    #[test]
    fn null_is_absent_and_defaults_stay_out() {
        let task = submission(r#"{"queue_id":null,"retry":null,"not_before":null,"task_timeout_ms":null}"#);
        assert_eq!(task, SubmitTaskRequest::default());
    }

    #[test]
    fn a_number_may_stand_in_quotes_and_with_an_exponent() {
        let attempts = |json: &str| {
            let body = format!("{{\"retry\":{{\"max_attempts\":{json}}}}}");
            read::<SubmitTaskRequest>("SubmitTaskRequest", &body)
                .map(|task| task.retry.and_then(|r| r.max_attempts))
        };
        for (json, number) in [
            ("3", 3),
            ("3.0", 3),
            ("1e2", 100),
            ("4294967295", u32::MAX),
            (r#""3""#, 3),
            (r#""3.0""#, 3),
            (r#""1e2""#, 100),
            (r#""4294967295""#, u32::MAX),
            (r#""0""#, 0),
        ] {
            assert_eq!(attempts(json), Ok(Some(number)), "{json}");
        }
        for json in [
            "1.5",
            "-1",
            "4294967296",
            "1e10",
            r#""1.5""#,
            r#""-1""#,
            r#""4294967296""#,
            r#""""#,
            r#"" 3""#,
            r#""+3""#,
            r#""0x3""#,
            r#""3 4""#,
            r#""NaN""#,
            r#""many""#,
            "true",
            "[3]",
        ] {
            let problems = attempts(json).expect_err(json);
            assert_eq!(problems.len(), 1, "{json}");
            assert_eq!(problems[0].0, "retry.max_attempts", "{json}");
        }
    }

    #[test]
    fn every_bad_field_is_named() {
        assert_eq!(
            bad(r#"{"queu":1,"retry":{"max_attempts":-1,"x":1}}"#),
            ["queu", "retry.max_attempts", "retry.x"]
        );
        assert_eq!(bad(r#"{"queue_id":"a","queueId":"a","payload":1,"payload":1}"#), ["queue_id", "payload"]);
        assert_eq!(
            bad(r#"{"handler":1,"recovery_safety":"X","not_before":"today","retry":[]}"#),
            ["handler", "recovery_safety", "not_before", "retry"]
        );
        for json in
            ["", "[]", "1", "{", "{}{}", "{\"payload\":}", "{\"payload\":{},\"queue_id\":\"\\ud800\"}"]
        {
            assert_eq!(bad(json).len(), 1, "{json}");
        }
        assert_eq!(bad(&format!("{{\"{}\":1}}", "x".repeat(1_000)))[0].chars().count(), NAME_CHARS_MAX + 1);
    }

    #[test]
    fn of_alternatives_only_one_is_taken() {
        let one = read::<ResolveTaskRequest>("ResolveTaskRequest", r#"{"succeeded":{"result":[ 1 ]}}"#);
        let crate::proto::resolve_task_request::Outcome::Succeeded(succeeded) =
            one.expect("read").outcome.expect("an outcome")
        else {
            panic!("not the outcome sent")
        };
        assert_eq!(succeeded.result, "[ 1 ]");
        let two = read::<ResolveTaskRequest>("ResolveTaskRequest", r#"{"succeeded":{},"retry":{}}"#);
        assert_eq!(two.expect_err("refused")[0].0, "retry");
    }
}
