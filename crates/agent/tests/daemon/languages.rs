//! Features that clients of other languages rely on: one call that adds and sends, reflection, and answers
//! that need no second decoding.

use super::named;
use super::world::{AgentTask, SOON, events, started, stopped};
use polycast_api::agent::agent_client::AgentClient as Stub;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{AddRequest, Caller, SendRequest};
use polycast_api::client::{Receivers, SendOptions, Wait};
use polycast_api::error::{Kind, Refusal};
use polycast_types::{AppId, DataId, Duration};
use tonic::transport::{Channel, Endpoint};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// A channel as a generated client has it.
async fn channel(agent: &AgentTask) -> Channel {
    let socket = agent.socket.clone();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(
                tokio::net::UnixStream::connect(socket).await?,
            ))
        }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_adds_and_sends_under_a_number_that_is_drawn() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let path = world.file("model.bin", b"0123456789");
    let source = a.session(1).await;
    let (made, sending) =
        source.add_and_send(&path, "weights", &Receivers::All, &SendOptions::default()).await.unwrap();
    assert!((1..1 << 53).contains(&made.data_id), "{made:?}");
    assert_eq!((made.name.as_str(), made.length), ("weights", 10));
    let (told, error) = events(sending).await;
    let Some(Event::Finished(report)) = told.last() else { panic!("{told:?} {error:?}") };
    assert!(report.is_complete() && report.data_id == made.data_id, "{report:?}");
    let read = b.session(1).await.read(DataId(made.data_id), SOON).await.unwrap();
    assert_eq!((std::fs::read(&read.path).unwrap(), read.name.as_str()), (b"0123456789".to_vec(), "weights"));
    // Another call draws another number, and its object is there afterwards, too.
    let (again, sending) =
        source.add_and_send(&path, "", &named(&["b"]), &SendOptions::default()).await.unwrap();
    assert!(again.data_id != made.data_id && again.name == "model.bin", "{again:?}");
    events(sending).await;
    assert_eq!(a.client().await.list(None).await.unwrap().len(), 2);
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_refused_at_once_leaves_no_object() {
    let (manager, world, [a]) = started("", ["a"]).await;
    let path = world.file("model.bin", b"0123456789");
    let session = a.session(1).await;
    let beyond = SendOptions { first_byte: 10, ..SendOptions::default() };
    for (receivers, options, says) in [
        (named(&[]), SendOptions::default(), "no receiver is named"),
        (Receivers::All, beyond, "byte 10 lies outside object"),
    ] {
        let error = session.add_and_send(&path, "", &receivers, &options).await.unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let missing = "/no/such".as_ref();
    let error =
        session.add_and_send(missing, "", &Receivers::All, &SendOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Path));
    // What is said twice may differ.
    let add = AddRequest { data_id: 7, path: path.to_str().unwrap().into(), ..AddRequest::default() };
    let caller = Some(Caller::new(AppId::default(), 1));
    let request = SendRequest { caller, all: true, add: Some(add), ..SendRequest::default() };
    let refused = Stub::new(channel(&a).await).send(request).await.unwrap_err();
    let refusal = Refusal::from_status(&refused).unwrap();
    assert_eq!(refusal.kind, Kind::Invalid);
    assert!(refusal.message.ends_with("leave them out of add"), "{refusal}");
    assert!(a.client().await.list(None).await.unwrap().is_empty());
    stopped([a], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_in_vain_is_too_late() {
    let (manager, _world, [a]) = started("", ["a"]).await;
    let wait = Wait::UntilReady(Some(Duration::from_millis(1)));
    let error = a.session(1).await.read(DataId(9), wait).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::TimedOut));
    assert_eq!(error.to_string(), "object 9 did not come in time: no source has begun to send it");
    stopped([a], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_tells_of_its_service_and_of_the_manager() {
    let (manager, _world, [a]) = started("", ["a"]).await;
    let (_, status) = a.client().await.manager_status().await.unwrap();
    assert_eq!(status.agents.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>(), ["a"]);
    let mut reflection = ServerReflectionClient::new(channel(&a).await);
    let ask = |what| {
        tokio_stream::once(ServerReflectionRequest { host: String::new(), message_request: Some(what) })
    };
    let answers = reflection.server_reflection_info(ask(MessageRequest::ListServices(String::new()))).await;
    let answer = answers.unwrap().into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else { panic!() };
    assert!(listed.service.iter().any(|service| service.name == "polycast.agent.v1.Agent"), "{listed:?}");
    let symbol = MessageRequest::FileContainingSymbol("polycast.manager.v1.StatusResponse".into());
    let answers = reflection.server_reflection_info(ask(symbol)).await;
    let answer = answers.unwrap().into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::FileDescriptorResponse(files)) = answer.message_response else { panic!() };
    assert!(!files.file_descriptor_proto.is_empty());
    stopped([a], manager).await;
}
