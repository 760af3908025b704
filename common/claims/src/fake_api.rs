//! An API server of a few objects, on loopback, with its preconditions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri};
use portway_runtime::kubernetes::{Client, ClientOptions};
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// UIDs and versions.
    last: u64,
    url: String,
    /// Method and path of every request that changed or refused something.
    writes: Vec<String>,
    reads: usize,
    /// A field that the definition does not have: `/spec/bootid`.
    dropped: Option<(String, String)>,
    /// Answers to the next requests.
    refusals: VecDeque<u16>,
    /// What no body may have in it.
    denied: Option<String>,
}

impl FakeApi {
    /// The server and a client of it.
    pub async fn start() -> (Self, Client) {
        let api = Self::default();
        let state = api.clone();
        let answer = move |method: Method, uri: Uri, body: Bytes| {
            let state = state.clone();
            async move { state.answer(&method, &uri, &body) }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        api.0.lock().unwrap().url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        let client = api.client().await;
        (api, client)
    }

    /// One more client.
    pub async fn client(&self) -> Client {
        let server = self.0.lock().unwrap().url.clone();
        let options = ClientOptions { servers: vec![server], ..ClientOptions::unlimited("test") };
        Client::new(options).await.unwrap()
    }

    /// The next requests are answered so.
    pub fn refuse(&self, codes: &[u16]) {
        self.0.lock().unwrap().refusals.extend(codes);
    }

    /// Every write with this in it is denied, as by an admission policy; `None`: none is.
    pub fn deny(&self, text: Option<&str>) {
        self.0.lock().unwrap().denied = text.map(str::to_owned);
    }

    /// The field of every object is dropped, as by a definition without it.
    pub fn drop_field(&self, pointer: &str) {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        self.0.lock().unwrap().dropped = Some((parent.to_owned(), field.to_owned()));
    }

    /// Somebody else creates an object; its UID.
    pub fn put(&self, path: &str, object: &Value) -> String {
        let mut state = self.0.lock().unwrap();
        state.last += 1;
        let uid = uid(state.last);
        let mut object = object.clone();
        object["metadata"]["uid"] = json!(uid);
        state.objects.insert(path.to_owned(), object);
        uid
    }

    pub fn take(&self, path: &str) -> Option<Value> {
        let mut state = self.0.lock().unwrap();
        state.last += 1;
        state.objects.remove(path)
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// The newest version that an object was given.
    pub fn version(&self) -> u64 {
        self.0.lock().unwrap().last
    }

    /// The paths of all objects, and they.
    pub fn all(&self) -> BTreeMap<String, Value> {
        self.0.lock().unwrap().objects.clone()
    }

    /// What was written since this was asked last.
    pub fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().writes)
    }

    pub fn reads(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().reads)
    }

    fn answer(&self, method: &Method, uri: &Uri, body: &[u8]) -> (StatusCode, String) {
        let mut state = self.0.lock().unwrap();
        let path = uri.path();
        let is_denied = |text: &String| String::from_utf8_lossy(body).contains(text);
        let is_denied = state.denied.as_ref().is_some_and(is_denied);
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if *method == Method::GET {
            state.reads += 1;
        } else {
            state.writes.push(format!("{method} {path}"));
        }
        if let Some(code) = state.refusals.pop_front() {
            return status(code);
        }
        if is_denied {
            return status(403);
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let held = state.objects.get(path).cloned();
        let wanted = if *method == Method::DELETE { &body["preconditions"] } else { &body["metadata"] };
        let differs = |held: &Value, field: &str| {
            let wanted = text(&wanted[field]);
            !wanted.is_empty() && held["metadata"].get(field).is_some_and(|held| *held != json!(wanted))
        };
        if let Some(held) = &held
            && *method != Method::GET
            && (differs(held, "uid") || differs(held, "resourceVersion"))
        {
            return status(409);
        }
        match (method, held) {
            (&Method::POST, _) => {
                let path = format!("{path}/{}", text(&body["metadata"]["name"]));
                if state.objects.contains_key(&path) {
                    return status(409);
                }
                let mut object = body;
                state.last += 1;
                object["metadata"]["uid"] = json!(uid(state.last));
                state.set_version(&mut object);
                state.prune(&mut object);
                state.objects.insert(path, object.clone());
                (StatusCode::CREATED, object.to_string())
            }
            (&Method::GET, None) if path.ends_with("/ciliumidentities") => {
                let below = format!("{path}/");
                let items: Vec<_> =
                    state.objects.iter().filter(|(path, _)| path.starts_with(&below)).collect();
                (StatusCode::OK, page(&items, uri.query().unwrap_or_default(), state.last).to_string())
            }
            (_, None) => status(404),
            (&Method::GET, Some(held)) => (StatusCode::OK, held.to_string()),
            (&Method::DELETE, Some(_)) => {
                state.last += 1;
                state.objects.remove(path);
                (StatusCode::OK, json!({"kind": "Status"}).to_string())
            }
            (_, Some(mut held)) => {
                merge(&mut held, &body);
                state.set_version(&mut held);
                state.prune(&mut held);
                state.objects.insert(path.to_owned(), held.clone());
                (StatusCode::OK, held.to_string())
            }
        }
    }
}

impl State {
    fn set_version(&mut self, object: &mut Value) {
        self.last += 1;
        object["metadata"]["resourceVersion"] = json!(self.last.to_string());
    }

    fn prune(&self, object: &mut Value) {
        if let Some((parent, field)) = &self.dropped
            && let Some(Value::Object(fields)) = object.pointer_mut(parent)
        {
            fields.remove(field);
        }
    }
}

/// The page of a list that is asked for; a token is how many went before.
fn page(items: &[(&String, &Value)], query: &str, version: u64) -> Value {
    let number = |name: &str| {
        let values = query.split('&').filter_map(|part| part.split_once('='));
        values.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse::<usize>().ok())
    };
    let (before, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
    let page: Vec<_> = items.iter().skip(before).take(limit).map(|(_, object)| object).collect();
    let after = before + page.len();
    let next = if after < items.len() { after.to_string() } else { String::new() };
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"resourceVersion": version.to_string(), "continue": next},
        "items": page,
    })
}

pub fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

fn status(code: u16) -> (StatusCode, String) {
    let text = json!({"kind": "Status", "code": code, "reason": "Scripted", "message": "so it is"});
    (StatusCode::from_u16(code).unwrap(), text.to_string())
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}
