//! The exact scheduler as an external one (docs/howto/scheduler.md): it gives paths to the requests
//! of the greatest total volume, bytes times receivers, that fit together into what is free.
//!
//! ```console
//! $ cargo run --release -p polycast-experiments --example exact-scheduler -- 127.0.0.1:7500
//! ```
#![allow(clippy::print_stdout, reason = "an example says where it is reached")]

use polycast_api::scheduler as api;
use polycast_api::scheduler::scheduler_server::{Scheduler, SchedulerServer};
use polycast_experiments::exact::{Claim, choose};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use tonic::{Request, Response, Status};

struct Exact;

#[tonic::async_trait]
impl Scheduler for Exact {
    async fn decide(&self, request: Request<api::Question>) -> Result<Response<api::Answer>, Status> {
        let question = request.into_inner();
        let decided = tokio::task::spawn_blocking(move || answer(&question)).await;
        decided.map_err(|error| Status::internal(error.to_string()))?.map(Response::new)
    }
}

fn answer(question: &api::Question) -> Result<api::Answer, Status> {
    let free: BTreeMap<String, u64> =
        question.free.iter().map(|things| (things.kind.clone(), things.count)).collect();
    let claim = |request: &api::Request| Claim {
        takes: request.takes.iter().map(|things| (things.kind.clone(), things.count)).collect(),
        volume: u128::from(request.remaining_bytes) * request.receivers.len() as u128,
    };
    let claims: Vec<Claim> = question.requests.iter().map(claim).collect();
    // Half of the deadline, as the way there and back takes time too.
    let time_limit = Duration::from_millis(question.deadline_ms / 2);
    let chosen = choose(&free, &claims, time_limit).map_err(|error| Status::internal(error.to_string()))?;
    let accept = |at: usize| {
        let what = api::Accept { bytes: None, fabric: String::new(), if_free: true };
        api::Decision { id: question.requests[at].id, what: Some(api::decision::What::Accept(what)) }
    };
    Ok(api::Answer { decisions: chosen.into_iter().map(accept).collect(), ask_again_ms: Some(1_000) })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:7500").parse()?;
    println!("decides at {address}");
    Ok(tonic::transport::Server::builder().add_service(SchedulerServer::new(Exact)).serve(address).await?)
}
