//! A client of the API server for tests: objects as JSON in and out, many at a time.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use http::{Method, Request};
use kube::client::ClientBuilder;
use portway_runtime::kubernetes::{Client, ClientOptions};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::Identity;
use crate::harness::Namespace;

/// Requests on their way at a time when there are many objects: more only wait in the API server.
const PARALLEL: usize = 16;
const MERGE_PATCH: &str = "application/merge-patch+json";
/// Kinds without a namespace, of those that the tests use.
const CLUSTER_SCOPED: [&str; 10] = [
    "CiliumEndpointSlice",
    "CiliumIdentity",
    "CiliumNode",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "Node",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Its sockets are in the control plane's namespace.
pub struct ApiClient {
    runtime: Runtime,
    client: kube::Client,
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // kube's client says nothing of itself.
        f.debug_struct("ApiClient").finish_non_exhaustive()
    }
}

impl ApiClient {
    /// As `token` says, at `server` alone.
    pub fn new(namespace: &Namespace, server: SocketAddr, identity: &Identity, token: &str) -> Result<Self> {
        let runtime = runtime(namespace)?;
        let mut config = kube::Config::new(super::url(server).parse()?);
        config.root_cert = Some(vec![identity.ca().to_vec()]);
        config.auth_info.token = Some(token.to_owned().into());
        // What a request came to is the test's to see.
        config.default_retry = false;
        let client = within(&runtime, async move { Ok(ClientBuilder::try_from(config)?.build()) })?;
        Ok(Self { runtime, client })
    }

    /// The answer to a GET of `path`.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.request(Method::GET, path, "", None)
    }

    /// Whether the API server is ready for requests.
    pub(super) fn readyz(&self) -> Result<()> {
        let client = self.client.clone();
        within(&self.runtime, async move {
            client.request_text(Request::get("/readyz").body(Vec::new())?).await?;
            Ok(())
        })
    }

    /// The items of a list, in whole: `/api/v1/services`.
    pub fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut list = self.get(path)?;
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => bail!("{path} is no list"),
        }
    }

    /// The lines of a watch of `path` (with its query) until it ends, or until nothing comes for `patience`; and
    /// whether it ended as it should.
    pub fn watch(&self, path: &str, patience: Duration) -> Result<(Vec<String>, bool)> {
        let client = self.client.clone();
        let request = Request::get(path).body(Vec::new())?;
        within(&self.runtime, async move {
            let mut stream = std::pin::pin!(client.request_stream(request).await?.lines());
            let mut lines = Vec::new();
            loop {
                match timeout(patience, stream.next()).await {
                    Ok(Some(Ok(line))) => lines.push(line),
                    Ok(None) => return Ok((lines, true)),
                    Ok(Some(Err(_))) | Err(_) => return Ok((lines, false)),
                }
            }
        })
    }

    /// Creates `object`; its status, where it has one, is set in a second request.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let (client, object) = (self.client.clone(), object.clone());
        within(&self.runtime, async move { create(&client, &object).await })
    }

    /// Creates `object` or puts it in the place of what is there, its status too.
    pub fn apply(&self, object: &Value) -> Result<Value> {
        let (client, object) = (self.client.clone(), object.clone());
        within(&self.runtime, async move { apply(&client, &object).await })
    }

    /// Merges the status of `object` into that of what is there.
    pub fn set_status(&self, object: &Value) -> Result<()> {
        let (client, object) = (self.client.clone(), object.clone());
        within(&self.runtime, async move { set_status(&client, &object).await.map(drop) })
    }

    /// Creates all of `objects`, in no order.
    pub fn create_all(&self, objects: Vec<Value>) -> Result<()> {
        let client = self.client.clone();
        within(&self.runtime, async move {
            let requests = objects.into_iter().map(|object| {
                let client = client.clone();
                async move { create(&client, &object).await.map(drop) }
            });
            stream::iter(requests).buffer_unordered(PARALLEL).try_collect().await
        })
    }

    /// A merge patch (RFC 7386) of the object that `object` names.
    pub fn patch(&self, object: &Value, patch: &Value) -> Result<Value> {
        self.request(Method::PATCH, &path_of(object)?, MERGE_PATCH, Some(patch))
    }

    /// As [`Self::patch`], the same patch of all that `objects` name, in no order.
    pub fn patch_all(&self, objects: &[Value], patch: &Value) -> Result<()> {
        let paths: Vec<String> = objects.iter().map(path_of).collect::<Result<_>>()?;
        let (client, patch) = (self.client.clone(), patch.clone());
        within(&self.runtime, async move {
            let requests =
                paths.into_iter().map(|path| {
                    let (client, patch) = (client.clone(), patch.clone());
                    async move {
                        request(&client, Method::PATCH, &path, MERGE_PATCH, Some(&patch)).await.map(drop)
                    }
                });
            stream::iter(requests).buffer_unordered(PARALLEL).try_collect().await
        })
    }

    /// Server-side apply of `object` that changes nothing: an unknown field is an error, too.
    pub fn dry_run(&self, object: &Value) -> Result<Value> {
        let query = "dryRun=All&fieldManager=portway-tests&force=true&fieldValidation=Strict";
        let path = format!("{}?{query}", path_of(object)?);
        self.request(Method::PATCH, &path, "application/apply-patch+yaml", Some(object))
    }

    /// Deletes the object that `object` names, at once.
    pub fn delete(&self, object: &Value) -> Result<()> {
        // Pods would wait for a kubelet.
        let options = json!({"gracePeriodSeconds": 0});
        self.request(Method::DELETE, &path_of(object)?, "application/json", Some(&options)).map(drop)
    }

    /// As [`Self::delete`]; what is not there is no error.
    pub fn delete_if_there(&self, object: &Value) -> Result<()> {
        match self.delete(object) {
            Err(error) if has_code(&error, 404) => Ok(()),
            other => other,
        }
    }

    /// Any request; the answer is JSON. An answer that is no success is an error.
    pub fn request(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> Result<Value> {
        let (client, path, kind) = (self.client.clone(), path.to_owned(), kind.to_owned());
        let body = body.cloned();
        within(&self.runtime, async move { request(&client, method, &path, &kind, body.as_ref()).await })
    }
}

async fn create(client: &kube::Client, object: &Value) -> Result<Value> {
    let clean = without_server_fields(object);
    let created =
        request(client, Method::POST, &collection_of(object)?, "application/json", Some(&clean)).await?;
    Ok(set_status(client, object).await?.unwrap_or(created))
}

async fn apply(client: &kube::Client, object: &Value) -> Result<Value> {
    let clean = without_server_fields(object);
    // Not the other way round: of a service that exists the API server says first that its address is taken.
    match request(client, Method::PUT, &path_of(object)?, "application/json", Some(&clean)).await {
        Ok(put) => Ok(set_status(client, object).await?.unwrap_or(put)),
        Err(error) if has_code(&error, 404) => create(client, object).await,
        Err(error) => Err(error),
    }
}

/// A create or an update leaves the status as it is; a second request sets it. A CiliumEndpoint's is like any field.
async fn set_status(client: &kube::Client, object: &Value) -> Result<Option<Value>> {
    if object["kind"] == "CiliumEndpoint" {
        return Ok(None);
    }
    let Some(status) = object.get("status").filter(|status| !status.is_null()) else { return Ok(None) };
    let path = format!("{}/status", path_of(object)?);
    let patch = json!({"status": status});
    request(client, Method::PATCH, &path, MERGE_PATCH, Some(&patch)).await.map(Some)
}

async fn request(
    client: &kube::Client,
    method: Method,
    path: &str,
    kind: &str,
    body: Option<&Value>,
) -> Result<Value> {
    let what = format!("{method} {path}");
    let mut request = Request::builder().method(method).uri(path);
    if !kind.is_empty() {
        request = request.header(http::header::CONTENT_TYPE, kind);
    }
    let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    client.request::<Value>(request.body(body)?).await.with_context(|| what)
}

/// Whether the API server answered with this status.
pub fn has_code(error: &anyhow::Error, code: u16) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == code)
}

/// What the API server sets itself, and takes amiss where it is another than it has.
fn without_server_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(field);
        }
    }
    object
}

/// `/api/v1/namespaces/default/services`.
fn collection_of(object: &Value) -> Result<String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let version = text("/apiVersion").with_context(|| format!("no apiVersion: {object}"))?;
    let kind = text("/kind").with_context(|| format!("no kind: {object}"))?;
    let root = if version.contains('/') { "apis" } else { "api" };
    let plural = match kind.to_lowercase() {
        kind if kind.ends_with('y') => format!("{}ies", kind.trim_end_matches('y')),
        kind => format!("{kind}s"),
    };
    Ok(if CLUSTER_SCOPED.contains(&kind) {
        format!("/{root}/{version}/{plural}")
    } else {
        let namespace = text("/metadata/namespace").unwrap_or("default");
        format!("/{root}/{version}/namespaces/{namespace}/{plural}")
    })
}

fn path_of(object: &Value) -> Result<String> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    Ok(format!("{}/{}", collection_of(object)?, name.with_context(|| format!("no name: {object}"))?))
}

/// All of its threads are in `namespace`.
pub(crate) fn runtime(namespace: &Namespace) -> Result<Runtime> {
    let namespace = namespace.clone();
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .thread_name(format!("in {}", namespace.name()))
        .on_thread_start(move || {
            if let Err(error) = namespace.join_thread() {
                crate::harness::complain(&format!("{error:#}: its requests will fail"));
            }
        })
        .build()
        .context("start a runtime")
}

/// Runs `work` on a thread of `runtime`, whose sockets are elsewhere than the caller's, and waits.
pub(crate) fn within<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    runtime.block_on(runtime.spawn(work)).context("a task of the harness panicked")?
}

/// A client as agents and operators have, but for their limits: as a kubeconfig says.
pub async fn portway_client(kubeconfig: &Path, user_agent: &str) -> Result<Client> {
    let kubeconfig = Some(kubeconfig.to_owned());
    let options = ClientOptions { kubeconfig, ..ClientOptions::unlimited(user_agent) };
    Client::new(options).await.context("make a client")
}
