//! Which HTTP requests stand for which calls: the `google.api.http` annotations of the contract.

use prost::Message as _;
use prost_reflect::{
    DescriptorError, DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind,
    MessageDescriptor, MethodDescriptor,
};
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic::codegen::http::{Method, uri::PathAndQuery};

use crate::proto::DESCRIPTOR_SET;

/// What stands beside a proto's own fields: an annotation, or the mark of a JSON text.
const HTTP_OPTION: &str = "google.api.http";
const JSON_OPTION: &str = "orbit.v1.json";
const STATUS: &str = "google.rpc.Status";
/// The package whose services are served.
const PACKAGE: &str = "orbit.v1";

/// Why the contract cannot be served by HTTP: the build is broken.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The descriptor set is not readable.
    #[error("the descriptor set is not readable: {0}")]
    Descriptor(#[from] DescriptorError),
    /// It lacks a definition.
    #[error("the descriptor set lacks {0}")]
    Missing(&'static str),
    /// An annotation that this gateway cannot follow.
    #[error("the HTTP annotation of {method} cannot be followed: {problem}")]
    Annotation {
        /// The method.
        method: String,
        /// What is wrong.
        problem: String,
    },
}

/// The contract, as far as HTTP goes.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) routes: Vec<Route>,
    /// Every error is one of these.
    pub(super) status: MessageDescriptor,
    pub(super) pool: DescriptorPool,
    pub(super) texts: JsonTexts,
}

/// Tells which fields hold a JSON text.
#[derive(Clone, Debug)]
pub(super) struct JsonTexts(ExtensionDescriptor);

impl JsonTexts {
    pub(super) fn holds(&self, field: &FieldDescriptor) -> bool {
        field.options().get_extension(&self.0).as_bool() == Some(true)
    }
}

/// One method, reached by one HTTP method and path.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) http_method: Method,
    /// As annotated, such as `/v1/tasks/{task_id}:cancel`.
    pub(super) template: String,
    segments: Vec<Segment>,
    /// What follows the colon of the last segment.
    verb: Option<String>,
    pub(super) method: MethodDescriptor,
    /// Where the method is found by gRPC.
    pub(super) grpc_path: PathAndQuery,
    /// Whether the fields come as a JSON body; otherwise as the query.
    pub(super) has_body: bool,
}

#[derive(Debug)]
enum Segment {
    Literal(String),
    Field(FieldDescriptor),
}

/// The fields that a path names, with their texts, still encoded.
pub(super) type PathFields<'p> = Vec<(FieldDescriptor, &'p str)>;

/// What a path and an HTTP method stand for.
pub(super) enum Found<'a, 'p> {
    Route(&'a Route, PathFields<'p>),
    /// The path exists for these methods only.
    OtherMethods(Vec<&'a Method>),
    Nothing,
}

impl Api {
    /// Reads the contract.
    pub(super) fn read() -> Result<Self, ApiError> {
        let mut pool = DescriptorPool::decode(DESCRIPTOR_SET)?;
        add_error_details(&mut pool)?;
        let extension = |name| pool.get_extension_by_name(name).ok_or(ApiError::Missing(name));
        let (http, json) = (extension(HTTP_OPTION)?, extension(JSON_OPTION)?);
        let mut routes = Vec::new();
        for method in methods(&pool) {
            let options = method.options();
            if options.has_extension(&http) {
                let rule = options.get_extension(&http).into_owned();
                let read = rule.as_message().ok_or_else(|| "is no message".to_owned());
                let route = read.and_then(|rule| Route::read(&method, rule));
                routes.push(route.map_err(|problem| ApiError::Annotation {
                    method: method.full_name().to_owned(),
                    problem,
                })?);
            }
        }
        let status = pool.get_message_by_name(STATUS).ok_or(ApiError::Missing(STATUS))?;
        Ok(Self { routes, status, texts: JsonTexts(json), pool })
    }

    pub(super) fn find<'p>(&self, http_method: &Method, path: &'p str) -> Found<'_, 'p> {
        // An answer without its body is what HTTP makes of it by itself.
        let http_method = if http_method == Method::HEAD { &Method::GET } else { http_method };
        let Some(path) = path.strip_prefix('/') else { return Found::Nothing };
        let slash = path.rfind('/').map_or(0, |at| at + 1);
        let (path, verb) = match path[slash..].find(':') {
            Some(colon) => (&path[..slash + colon], Some(&path[slash + colon + 1..])),
            None => (path, None),
        };
        let mut others = Vec::new();
        for route in &self.routes {
            match route.fields(path, verb) {
                Some(fields) if route.http_method == *http_method => return Found::Route(route, fields),
                Some(_) => others.push(&route.http_method),
                None => {}
            }
        }
        if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others) }
    }
}

/// Adds the messages that details of errors are. `google.rpc.Status` comes with them under another file's name.
fn add_error_details(pool: &mut DescriptorPool) -> Result<(), ApiError> {
    let set = FileDescriptorSet::decode(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .map_err(|_| ApiError::Missing("the details of errors"))?;
    let known: Vec<_> = pool.all_messages().map(|m| m.full_name().to_owned()).collect();
    let is_new = |file: &FileDescriptorProto| {
        !file.message_type.iter().any(|m| known.contains(&format!("{}.{}", file.package(), m.name())))
    };
    Ok(pool.add_file_descriptor_protos(set.file.into_iter().filter(is_new))?)
}

/// All methods that Orbit serves.
pub(super) fn methods(pool: &DescriptorPool) -> Vec<MethodDescriptor> {
    let services = pool.services().filter(|s| s.package_name() == PACKAGE);
    services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
}

impl Route {
    fn read(method: &MethodDescriptor, rule: &DynamicMessage) -> Result<Self, String> {
        let text = |name| rule.get_field_by_name(name).and_then(|v| v.as_str().map(str::to_owned));
        let patterns =
            [("get", Method::GET), ("post", Method::POST), ("patch", Method::PATCH), ("put", Method::PUT)];
        let given = patterns.into_iter().find(|(name, _)| rule.has_field_by_name(name));
        let (name, http_method) = given.ok_or("has none of get, post, patch, put")?;
        let template = text(name).unwrap_or_default();
        let has_body = match text("body").as_deref() {
            Some("*") => true,
            Some("") | None => false,
            Some(_) => return Err("a body is all of the message, or nothing".to_owned()),
        };
        let unread = rule.fields().find(|(f, _)| f.name() != name && f.name() != "body");
        if let Some((field, _)) = unread {
            return Err(format!("{} is not supported", field.name()));
        }
        if method.is_client_streaming() || method.is_server_streaming() {
            return Err("streams have no HTTP form".to_owned());
        }
        let path = template.strip_prefix('/').ok_or("a path begins with /")?;
        let (path, verb) = match path.split_once(':') {
            Some((path, verb)) => (path, Some(verb.to_owned())),
            None => (path, None),
        };
        let segments = path.split('/').map(|segment| Segment::read(method, segment));
        let grpc_path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        Ok(Self {
            http_method,
            segments: segments.collect::<Result<_, _>>()?,
            verb,
            template,
            method: method.clone(),
            grpc_path: PathAndQuery::try_from(grpc_path).map_err(|e| e.to_string())?,
            has_body,
        })
    }

    /// The fields in a path, if it is of this route.
    fn fields<'p>(&self, path: &'p str, verb: Option<&str>) -> Option<PathFields<'p>> {
        if self.verb.as_deref() != verb {
            return None;
        }
        let mut given = path.split('/');
        let mut fields = Vec::new();
        for segment in &self.segments {
            match (segment, given.next()?) {
                (Segment::Literal(name), given) if name == given => {}
                (Segment::Field(field), given) if !given.is_empty() => fields.push((field.clone(), given)),
                _ => return None,
            }
        }
        given.next().is_none().then_some(fields)
    }

    /// The fields of which the path is made.
    pub(super) fn path_fields(&self) -> impl Iterator<Item = &FieldDescriptor> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Field(field) => Some(field),
            Segment::Literal(_) => None,
        })
    }
}

impl Segment {
    fn read(method: &MethodDescriptor, segment: &str) -> Result<Self, String> {
        let Some(name) = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) else {
            return Ok(Self::Literal(segment.to_owned()));
        };
        let field = method.input().get_field_by_name(name).filter(|f| f.kind() == Kind::String);
        field.map(Self::Field).ok_or_else(|| format!("{name} is no text of the request"))
    }
}

/// Whether a message has a JSON form of its own, such as a moment.
pub(super) fn is_well_known(message: &MessageDescriptor) -> bool {
    message.package_name() == "google.protobuf"
}

/// A message as bytes on the wire.
pub(super) fn encode(message: &DynamicMessage) -> Vec<u8> {
    message.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method and fields of a request, or what it is instead.
    fn found(http_method: &Method, path: &str) -> String {
        let api = Api::read().expect("the contract");
        match api.find(http_method, path) {
            Found::Route(route, fields) => {
                let fields: Vec<_> = fields.iter().map(|(f, text)| format!(" {}={text}", f.name())).collect();
                format!("{}{}", route.method.name(), fields.join(""))
            }
            Found::OtherMethods(methods) => format!("{methods:?}"),
            Found::Nothing => String::new(),
        }
    }

    #[test]
    fn paths_lead_to_methods() {
        assert_eq!(found(&Method::POST, "/v1/tasks"), "SubmitTask");
        assert_eq!(found(&Method::GET, "/v1/tasks/a%20b"), "GetTask task_id=a%20b");
        assert_eq!(found(&Method::HEAD, "/v1/tasks/a"), "GetTask task_id=a");
        assert_eq!(found(&Method::GET, "/v1/tasks/a:wait"), "WaitTask task_id=a");
        assert_eq!(found(&Method::GET, "/v1/tasks:lookup"), "LookupTask");
        assert_eq!(found(&Method::GET, "/v1/tasks/a/attempts"), "ListAttempts task_id=a");
        assert_eq!(found(&Method::POST, "/v1/queues/q:pause"), "PauseQueue queue_id=q");
        assert_eq!(found(&Method::PATCH, "/v1/queues/q"), "UpdateQueue queue_id=q");
    }

    #[test]
    fn others_lead_nowhere() {
        assert_eq!(found(&Method::GET, "/v1/tasks/a:cancel"), "[POST]");
        for path in ["", "/", "/v1", "/v1/tasks/", "/v1/tasks/a:", "/v1/tasks/a:b", "/v1/tasks/a/b/c", "*"] {
            assert_eq!(found(&Method::GET, path), "", "{path}");
        }
    }

    #[test]
    fn every_method_but_the_stream_has_its_path() {
        let api = Api::read().expect("the contract");
        let without = methods(&api.pool).into_iter().filter(|m| !api.routes.iter().any(|r| r.method == *m));
        assert_eq!(without.map(|m| m.name().to_owned()).collect::<Vec<_>>(), ["Worker"]);
    }
}
