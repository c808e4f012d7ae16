use super::*;
use proptest::prelude::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn outputs(text: &str) -> Vec<Output> {
    let mut framer = Framer::new();
    framer.push(text.as_bytes());
    std::iter::from_fn(|| framer.next_output().unwrap()).collect()
}

fn response(tag: &str, completion: Completion, lines: &[&str]) -> Output {
    let lines = lines.iter().map(ToString::to_string).collect();
    Output::Response { tag: tag.into(), completion, code: None, lines, comment: String::new(), more: false }
}

#[test]
fn answers_are_found_among_prompts_and_echoes() {
    let text = "Welcome; type help\r\nTL1> ENT-CRS-FIBER::1,121:7;\r\nIP 7\r\n<\r\n\n   OCS 26-11-21 09:30:00\r\n\
                M  7 COMPLD\r\n;\r\nTL1> \r\n\n   OCS 26-11-21 09:30:01\r\n*C 12 REPT ALM CRS\r\n   \
                \"1,121:CR,LOS;x\"\r\n;\r\n\n   OCS 26-11-21 09:30:02\r\nM  8 DENY\r\n   IIAC\r\n   \
                /* port 900; there are 320 */\r\n;";
    let seen = outputs(text);
    assert_eq!(seen[0], Output::Acknowledged { code: "IP".into(), tag: "7".into() });
    assert_eq!(seen[1], response("7", Completion::Completed, &[]));
    let (verb, lines) = ("REPT ALM CRS".to_string(), vec!["1,121:CR,LOS;x".to_string()]);
    assert_eq!(seen[2], Output::Autonomous { severity: Severity::Critical, tag: "12".into(), verb, lines });
    let Output::Response { completion: Completion::Denied, code, comment, .. } = &seen[3] else {
        panic!("{:?}", seen[3])
    };
    assert_eq!((code.as_deref(), comment.as_str()), (Some("IIAC"), "port 900; there are 320"));
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_stream_without_end_is_given_up() {
    let mut framer = Framer::new();
    framer.push(&vec![b'x'; OUTPUT_MAX + 1]);
    assert_eq!(framer.next_output(), Err(FrameError::TooLong));
}

#[test]
fn parts_of_an_answer_are_joined() {
    let mut session = Session::new();
    let tag = session.request(&Request::Retrieve).unwrap();
    let part = |lines: &[&str], more| {
        let Output::Response { tag, completion, code, lines, comment, .. } =
            response(&tag.to_string(), Completion::Completed, lines)
        else {
            unreachable!("a response was made")
        };
        Output::Response { tag, completion, code, lines, comment, more }.emit("OCS", "26-11-21 09:30:00")
    };
    session.receive(part(&["1,2"], true).as_bytes()).unwrap();
    assert_eq!(session.poll(), None);
    session.receive(part(&["3,4"], false).as_bytes()).unwrap();
    let lines = vec!["1,2".to_string(), "3,4".to_string()];
    assert_eq!(
        session.poll(),
        Some(Event::Done { tag, result: Ok(Answer { lines, comment: String::new() }) })
    );
    // The same answer again is an answer to nobody.
    session.receive(part(&[], false).as_bytes()).unwrap();
    assert_eq!(session.poll(), None);
}

#[test]
fn commands_are_read_as_they_are_written() {
    let circuit = Circuit { from: 0, to: 120 };
    assert_eq!(Request::Enter(circuit).emit(7), "ENT-CRS-FIBER::1,121:7;");
    assert_eq!(Request::Delete(circuit).describe(), "DLT-CRS-FIBER::1,121");
    let login = Request::Login { user: "a".into(), password: "b:c".into() };
    assert!(!login.describe().contains("b:c"));
    for request in [
        login,
        Request::Logout { user: "a".into() },
        Request::Enter(circuit),
        Request::Delete(circuit),
        Request::Retrieve,
        Request::Alarms,
        Request::Header,
    ] {
        let text = request.emit(42);
        assert_eq!(Request::parse(text.trim_end_matches(';')), Ok((request, "42".to_string())));
    }
    for (text, code) in [
        ("FLY-AWAY:::1", "IICM"),
        ("ENT-CRS-FIBER::1:2", "IIAC"),
        ("ENT-CRS-FIBER::0,1:2", "IIAC"),
        ("ENT-CRS-FIBER::1,99999999999:2", "IIAC"),
        ("ENT-CRS-FIBER::1,2:", "IICT"),
        ("", "IICT"),
    ] {
        assert_eq!(Request::parse(text).unwrap_err().code, code, "{text}");
    }
}

fn any_output() -> impl Strategy<Value = Output> {
    let tag = "[0-9A-Z]{1,6}";
    let lines = || proptest::collection::vec("[ -~]{0,20}", 0..4);
    let completion =
        prop_oneof![Just(Completion::Completed), Just(Completion::Denied), Just(Completion::Partial)];
    let response = (tag, completion, lines(), "[a-z][a-z;<> ]{0,8}[a-z]", any::<bool>()).prop_map(
        |(tag, completion, lines, comment, more)| {
            let code = (completion == Completion::Denied).then(|| "IIAC".to_string());
            Output::Response { tag, completion, code, lines, comment, more }
        },
    );
    let severity = prop_oneof![Just(Severity::Message), Just(Severity::Minor), Just(Severity::Critical)];
    let autonomous = (tag, severity, lines()).prop_map(|(tag, severity, lines)| {
        let verb = "REPT EVT CRS".to_string();
        Output::Autonomous { severity, tag, verb, lines }
    });
    let acknowledged = tag.prop_map(|tag| Output::Acknowledged { code: "IP".into(), tag });
    prop_oneof![response, autonomous, acknowledged]
}

proptest! {
    #[test]
    fn outputs_are_read_as_they_are_written(list in proptest::collection::vec(any_output(), 0..5), cut in 1usize..9) {
        let text: String = list.iter().map(|output| output.emit("OCS", "26-11-21 09:30:00")).collect();
        let mut framer = Framer::new();
        let mut seen = Vec::new();
        for piece in text.as_bytes().chunks(cut) {
            framer.push(piece);
            while let Some(output) = framer.next_output().unwrap() {
                seen.push(output);
            }
        }
        prop_assert_eq!(seen, list);
    }
}

/// A switch that answers what `reply` says to each command.
async fn serve(mut stream: TcpStream, mut reply: impl FnMut(&Request, &str) -> Option<String>) {
    let (mut buffer, mut text) = ([0; 1024], String::new());
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        text.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
        while let Some((command, rest)) = text.split_once(';') {
            let (request, tag) = Request::parse(command).unwrap();
            match reply(&request, &tag) {
                Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                None => return,
            }
            text = rest.to_string();
        }
    }
}

fn completed(tag: &str, lines: &[&str]) -> Option<String> {
    Some(response(tag, Completion::Completed, lines).emit("OCS", "26-11-21 09:30:00"))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn a_lost_connection_is_made_again_with_its_login() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        for round in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let mut logged_in = false;
            serve(stream, |request, tag| match request {
                Request::Login { user, password } => {
                    assert_eq!((user.as_str(), password.as_str()), ("root", "secret"));
                    logged_in = true;
                    completed(tag, &[])
                }
                _ if !logged_in => panic!("a command before the login"),
                // The first connection breaks in the middle of this.
                Request::Enter(_) if round == 0 => None,
                Request::Retrieve => completed(tag, &["3,4:", "1,2:"]),
                _ => completed(tag, &[]),
            })
            .await;
        }
    });
    let login = Some(Login { user: "root".into(), password: "secret".into() });
    let client = Tl1Client::connect(address, Tl1Options { login, ..Tl1Options::default() }).await.unwrap();
    let circuit = Circuit { from: 0, to: 1 };
    let mut link = client.link();
    assert_eq!(*link.borrow_and_update(), Link::Up(1));
    let lost = client.enter(circuit).await.unwrap_err();
    assert_eq!(lost, Tl1Error::Lost { command: "ENT-CRS-FIBER::1,2".into() });
    link.wait_for(|link| *link == Link::Up(2)).await.unwrap();
    client.enter(circuit).await.unwrap();
    assert_eq!(client.retrieve().await.unwrap(), [circuit, Circuit { from: 2, to: 3 }]);
}

#[tokio::test]
async fn many_commands_are_under_way_and_each_gets_its_own_answer() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut held = String::new();
        serve(stream, |request, tag| {
            let Request::Enter(circuit) = request else { return completed(tag, &[]) };
            let answer = if circuit.from % 3 == 0 {
                let (code, comment) = (Some("SNPC".into()), format!("port {} is in use", circuit.from + 1));
                let (completion, lines) = (Completion::Denied, vec![]);
                let denied =
                    Output::Response { tag: tag.into(), completion, code, lines, comment, more: false };
                denied.emit("OCS", "26-11-21 09:30:00")
            } else {
                completed(tag, &[]).unwrap()
            };
            // The answers come in reverse order, after the last command.
            held.insert_str(0, &answer);
            Some(if circuit.from == 29 { std::mem::take(&mut held) } else { String::new() })
        })
        .await;
    });
    let client = Tl1Client::connect(address, Tl1Options::default()).await.unwrap();
    let enter = |from| {
        let client = client.clone();
        tokio::spawn(async move { client.enter(Circuit { from, to: 100 }).await })
    };
    let answers: Vec<_> = (0..30).map(enter).collect();
    for (from, answer) in answers.into_iter().enumerate() {
        match answer.await.unwrap() {
            Ok(()) => assert_ne!(from % 3, 0),
            Err(error) => {
                assert_eq!(from % 3, 0);
                let text = format!(
                    "the circuit switch refuses ENT-CRS-FIBER::{},101: port {0} is in use (SNPC)",
                    from + 1
                );
                assert_eq!(error.to_string(), text);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_switch_is_not_waited_for_for_ever() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, |_, _| Some(String::new())).await;
    });
    let client = Tl1Client::connect(address, Tl1Options::default()).await.unwrap();
    let error = client.retrieve().await.unwrap_err();
    assert_eq!(error, Tl1Error::TimedOut { command: "RTRV-CRS-FIBER::ALL".into(), millis: 5_000 });
    // Nor does it pass for a live one.
    client.link().wait_for(|link| *link == Link::Down).await.unwrap();
    let error = client.retrieve().await.unwrap_err();
    assert!(matches!(error, Tl1Error::Disconnected { .. }), "{error}");
}

#[tokio::test]
async fn reports_are_passed_on_and_a_refused_login_is_said() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            serve(stream, |request, tag| {
                let output = match request {
                    Request::Login { .. } => Output::Response {
                        tag: tag.into(),
                        completion: Completion::Denied,
                        code: Some("PIUI".into()),
                        lines: vec![],
                        comment: "unknown user".into(),
                        more: false,
                    },
                    _ => Output::Autonomous {
                        severity: Severity::Major,
                        tag: "1".into(),
                        verb: "REPT ALM EQPT".into(),
                        lines: vec!["FAN-1:MJ,FAIL".into()],
                    },
                };
                let answer = output.emit("OCS", "26-11-21 09:30:00");
                Some(answer + &completed(tag, &[]).unwrap())
            })
            .await;
        }
    });
    let client = Tl1Client::connect(address, Tl1Options::default()).await.unwrap();
    let mut reports = client.reports();
    client.alarms().await.unwrap();
    let report = reports.recv().await.unwrap();
    assert_eq!((report.severity, report.verb.as_str()), (Severity::Major, "REPT ALM EQPT"));
    assert_eq!(report.lines, ["FAN-1:MJ,FAIL"]);
    drop(client);
    let login = Some(Login { user: "x".into(), password: "y".into() });
    let refused =
        Tl1Client::connect(address, Tl1Options { login, ..Tl1Options::default() }).await.unwrap_err();
    assert!(refused.to_string().contains("refuses the login of 'x': unknown user (PIUI)"), "{refused}");
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let error = Tl1Client::connect(nobody, Tl1Options::default()).await.unwrap_err();
    assert!(matches!(error, Tl1Error::Unreachable { .. }), "{error}");
}
