use portway_runtime::kubernetes::{ClientOptions, Reporter};
use prometheus::Registry;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::controller::{Pace, Plan};

/// Wants so many objects that are not there.
struct Wants(usize);

impl Controller for Wants {
    fn name(&self) -> &'static str {
        "wants"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CiliumNode]
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: self.0, per_second: 1000.0 }
    }

    fn plan(&mut self, _: &Observed, _: Now) -> Plan {
        let write = |n: usize| Write::create(Kind::CiliumNode, format!("n{n}"), json!({}), "test");
        Plan { writes: (0..self.0).map(write).collect(), ..Plan::default() }
    }
}

const NOW: Now = Now { wall: Duration::ZERO, monotonic: Duration::ZERO };

/// An executor that has begun to write to a server that takes connections and says nothing.
async fn writing(count: usize, qps: u32) -> (Executor, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let servers = vec![format!("http://{}", listener.local_addr().unwrap())];
    let options = ClientOptions { servers, qps, burst: qps, ..ClientOptions::unlimited("test") };
    let client = Client::new(options).await.unwrap();
    let reporter = Reporter { controller: "test", instance: "test".to_owned(), action: "Test" };
    let events = EventRecorder::start(client.clone(), reporter);
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let mut executor = Executor::new(client, qps, vec![Box::new(Wants(count))], events, metrics);
    executor.step(&Observed::fresh(), NOW);
    (executor, listener)
}

#[tokio::test]
async fn what_has_no_room_when_the_term_ends_is_not_sent() {
    let (mut executor, _listener) = writing(300, 50).await;
    // They take what room there is.
    tokio::task::yield_now().await;
    executor.stop();
    for _ in 0..250 {
        let answered = timeout(Duration::from_secs(5), executor.answer()).await.expect("an answer at once");
        assert_eq!(answered.answer.word(), "fenced");
        executor.take(answered, NOW);
    }
    assert_eq!((executor.under_way.len(), executor.is_idle()), (50, false));
}

#[tokio::test]
async fn a_write_whose_task_ends_without_an_answer_has_failed() {
    let (mut executor, _listener) = writing(2, 50).await;
    executor.under_way.abort_all();
    for _ in 0..2 {
        let answered = timeout(Duration::from_secs(5), executor.answer()).await.expect("an answer");
        assert_eq!(answered.answer.word(), "failed");
        executor.take(answered, NOW);
    }
    assert!(executor.is_idle() && executor.writes.is_empty());
    let status = executor.status(NOW).remove(0);
    assert_eq!((status.failed, status.state.as_str()), (2, "waiting for watches"));
}
