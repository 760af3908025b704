//! Endpoints and their addresses.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};

use super::{Api, Failure};
use crate::api::{Ipam, IpamAddress, IpamPool, path};
use crate::endpoints::{Change, Endpoint, Endpoints};

pub(super) fn router() -> Router<Arc<Api>> {
    Router::new()
        .route(path::ENDPOINTS, get(list))
        .route(&format!("{}/{{id}}", path::ENDPOINTS), get(one))
        .route(&format!("{}/{{id}}/log", path::ENDPOINTS), get(log))
        .route(path::IPAM, get(ipam))
}

fn known(api: &Api) -> Result<&Endpoints, Failure> {
    if api.config.pod_network.is_none() {
        let text = "this agent has no pod network: enable-pod-network is off, or another CNI gives pods their addresses";
        return Err(Failure::NotFound(text.to_owned()));
    }
    api.endpoints.get().ok_or(Failure::Starting)
}

fn found(api: &Api, id: u16) -> Result<Endpoint, Failure> {
    known(api)?.get(id).ok_or_else(|| Failure::NotFound(format!("there is no endpoint {id}")))
}

/// Without their logs.
async fn list(State(api): State<Arc<Api>>) -> Result<Json<Vec<Endpoint>>, Failure> {
    let mut all = known(&api)?.list();
    for endpoint in &mut all {
        endpoint.log.clear();
    }
    Ok(Json(all))
}

async fn one(State(api): State<Arc<Api>>, Path(id): Path<u16>) -> Result<Json<Endpoint>, Failure> {
    found(&api, id).map(Json)
}

async fn log(State(api): State<Arc<Api>>, Path(id): Path<u16>) -> Result<Json<VecDeque<Change>>, Failure> {
    found(&api, id).map(|endpoint| Json(endpoint.log))
}

async fn ipam(State(api): State<Arc<Api>>) -> Result<Json<Ipam>, Failure> {
    let endpoints = known(&api)?;
    let pools = endpoints.pools().into_iter().map(|pool| IpamPool {
        prefix: pool.prefix.to_string(),
        size: u64::try_from(pool.size).unwrap_or(u64::MAX),
        used: pool.used as u64,
        resting: pool.resting as u64,
        is_retired: pool.is_retired,
    });
    let all = endpoints.list();
    let mut addresses: Vec<_> = all.iter().flat_map(addresses).collect();
    addresses.sort_by_key(|address| address.address);
    Ok(Json(Ipam { pools: pools.collect(), addresses }))
}

fn addresses(endpoint: &Endpoint) -> impl Iterator<Item = IpamAddress> {
    let of = move |address: &IpAddr| IpamAddress {
        address: *address,
        endpoint: endpoint.id,
        owner: endpoint.name(),
    };
    endpoint.addresses.iter().map(of)
}
