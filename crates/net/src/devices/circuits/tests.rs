use super::*;
use crate::devices::scpi;
use crate::devices::tl1::{Completion, Severity};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const WHEN: &str = "26-11-21 09:30:00";

fn plain() -> CircuitOptions {
    CircuitOptions::new(Arc::new(Plain))
}

#[test]
fn commands_are_read_as_they_are_written() {
    let login = Login { user: "a".into(), password: "b:c".into() };
    for name in DIALECTS {
        let dialect = dialect(name, 24).unwrap();
        let circuit = Circuit { from: dialect.nth_port(0), to: dialect.nth_port(20) };
        let read = |command: &Command| {
            let text = match dialect.framing() {
                Framing::Tl1 => command.emit(42),
                Framing::Scpi => command.line().to_string(),
            };
            let (request, tag) = dialect.parse(text.trim_end_matches(';')).unwrap();
            assert!(tag == "42" || dialect.framing() == Framing::Scpi, "{name}: {text}");
            request
        };
        let made = read(dialect.enter(circuit).last().unwrap());
        assert_eq!(made, Request::Enter(circuit), "{name}");
        let gone = read(&dialect.delete(circuit)[0]);
        assert!(
            [Request::Delete(circuit), Request::DeleteFrom(circuit.from)].contains(&gone),
            "{name}: {gone:?}"
        );
        assert_eq!(read(&dialect.retrieve()), Request::Retrieve, "{name}");
        if let Some(command) = dialect.login(Some(&login)).filter(|_| dialect.has_login()) {
            assert_eq!(read(&command), Request::Login { user: "a".into(), password: "b:c".into() }, "{name}");
            assert!(!command.describe().contains("b:c") && !format!("{command:?}").contains("b:c"), "{name}");
        }
        for line in dialect.list(&[circuit], 24) {
            for held in dialect.circuits(&line).unwrap() {
                assert_eq!(held, Held::from(circuit), "{name}: {line}");
            }
        }
        // What the other end calls a port is read as it is written.
        assert_eq!(dialect.port(&dialect.port_name(circuit.to)), Some(circuit.to), "{name}");
        assert_eq!((dialect.port("0"), dialect.port("-1"), dialect.port("x")), (None, None, None), "{name}");
    }
    let unknown = dialect("latin", 1).unwrap_err().to_string();
    assert!(unknown.contains("'latin', only glimmerglass, calient"), "{unknown}");
}

#[test]
fn what_is_wrong_in_a_command_is_said() {
    for (name, text, code) in [
        ("plain", "FLY-AWAY:::1", "IICM"),
        ("plain", "ENT-CRS-FIBER::1:2", "IIAC"),
        ("plain", "ENT-CRS-FIBER::0,1:2", "IIAC"),
        ("plain", "ENT-CRS-FIBER::1,99999999999:2", "IIAC"),
        ("plain", "ENT-CRS-FIBER::1,2:", "IICT"),
        ("plain", "", "IICT"),
        ("glimmerglass", "ENT-CRS-FIBER::1,121:2", "IIAC"),
        ("glimmerglass", "ENT-CRS-FIBER::20001,10001:2", "IIAC"),
        ("calient", "ENT-CRS::1.1,1.1.2:7", "IIAC"),
        ("polatis-tl1", "ENT-PATCH::25,1:7", "IIAC"),
        ("polatis-scpi", ":oxc:swit:conn:add (@1,2),(@25,26)", "-102"),
        ("polatis-scpi", "hello", "-113"),
    ] {
        assert_eq!(dialect(name, 24).unwrap().parse(text).unwrap_err().code, code, "{name}: {text}");
    }
}

#[test]
fn dialogues_of_public_drivers_are_understood() {
    for (name, text) in [
        ("glimmerglass", include_str!("dialogues/glimmerglass.txt")),
        ("calient", include_str!("dialogues/calient.txt")),
        ("polatis-tl1", include_str!("dialogues/polatis-tl1.txt")),
        ("polatis-scpi", include_str!("dialogues/polatis-scpi.txt")),
    ] {
        let (dialogue, dialect) = (Dialogue::read(text).unwrap(), dialect(name, 32).unwrap());
        dialogue.play(&*dialect).unwrap_or_else(|error| panic!("{name}: {error}"));
        for operation in ["login", "retrieve", "enter", "delete"] {
            let mut questions = dialogue.turns.iter().map(|turn| turn.question.split(' ').next());
            assert!(
                questions.any(|asked| asked == Some(operation)),
                "{name} has no dialogue for {operation}"
            );
        }
        let mut wrong = dialogue.clone();
        wrong.turns[1].found.push("more".into());
        assert!(matches!(wrong.play(&*dialect), Err(DialogueError::Found { .. })), "{name}");
        assert_eq!(Dialogue::read(&dialogue.text()).as_ref(), Ok(&dialogue), "{name}");
    }
}

/// Every dialogue that was recorded leads the driver to what it found then. A new one is a file more.
#[test]
fn recorded_dialogues_are_understood() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/devices/circuits/dialogues/recorded");
    let mut played = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let played_well = Dialogue::read(&std::fs::read_to_string(&path).unwrap()).and_then(|dialogue| {
            let dialect = dialogue.of_dialect()?;
            dialogue.play(&*dialect)
        });
        played_well.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        played += 1;
    }
    assert!(played >= DIALECTS.len(), "{played} dialogues in {}", folder.display());
}

#[test]
fn answers_without_numbers_cannot_be_mistaken() {
    let mut session = scpi::Session::new();
    let dialect = dialect("polatis-scpi", 24).unwrap();
    let first = session.request(&dialect.retrieve()).unwrap();
    session.request(&dialect.identity().unwrap()).unwrap();
    session.forget(first);
    assert_eq!(session.receive(b"(@),(@)\n"), Err(scpi::LineError::Missing));
    let mut session = scpi::Session::new();
    assert_eq!(session.receive(&vec![b'x'; 2 << 20]), Err(scpi::LineError::TooLong));
}

#[test]
fn many_lines_that_come_at_once_take_no_time_in_the_square_of_their_number() {
    let mut session = scpi::Session::new();
    let dialect = dialect("polatis-scpi", 24).unwrap();
    session.receive(&vec![b'\n'; 4 << 20]).unwrap();
    let number = session.request(&dialect.retrieve()).unwrap();
    session.receive(b"(@1),(").unwrap();
    session.receive(b"@25)\n").unwrap();
    let (answered, answer) = session.poll().unwrap();
    assert_eq!((answered, answer.unwrap().lines), (number, vec!["(@1),(@25)".to_string()]));
    // What it says of an error is short, and moves no cursor.
    let circuit = Circuit { from: 0, to: 0 };
    session.request(&dialect.enter(circuit)[0]).unwrap();
    session.receive(format!("\u{1b}[2J,{}\n", "x".repeat(20_000)).as_bytes()).unwrap();
    let failure = session.poll().unwrap().1.unwrap_err();
    assert!(failure.code == r"\u{1b}[2J" && failure.text.len() < 500, "{failure:?}");
}

/// A switch that answers what `reply` says to each command.
async fn serve(mut stream: TcpStream, mut reply: impl FnMut(&Request, &str) -> Option<String>) {
    let (mut buffer, mut text) = ([0; 1024], String::new());
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        text.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
        while let Some((command, rest)) = text.split_once(';') {
            let (request, tag) = Plain.parse(command).unwrap();
            match reply(&request, &tag) {
                Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                None => return,
            }
            text = rest.to_string();
        }
    }
}

fn completed(tag: &str, lines: &[&str]) -> Option<String> {
    Some(tl1_answer(tag, Ok(lines.iter().map(ToString::to_string).collect()), "OCS", WHEN))
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
    let client = CircuitClient::connect(address, CircuitOptions { login, ..plain() }).await.unwrap();
    let circuit = Circuit { from: 0, to: 1 };
    let mut link = client.link();
    assert_eq!(*link.borrow_and_update(), Link::Up(1));
    let lost = client.enter(circuit).await.unwrap_err();
    assert_eq!(lost, CircuitError::Lost { command: "ENT-CRS-FIBER::1,2".into() });
    link.wait_for(|link| *link == Link::Up(2)).await.unwrap();
    client.enter(circuit).await.unwrap();
    assert_eq!(client.retrieve().await.unwrap(), [circuit.into(), Circuit { from: 2, to: 3 }.into()]);
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
    let client = CircuitClient::connect(address, plain()).await.unwrap();
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
async fn waiting_for_a_silent_switch_ends() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, |_, _| Some(String::new())).await;
    });
    let client = CircuitClient::connect(address, plain()).await.unwrap();
    let error = client.retrieve().await.unwrap_err();
    assert_eq!(error, CircuitError::TimedOut { command: "RTRV-CRS-FIBER::ALL".into(), millis: 5_000 });
    // Nor does it pass for a live one.
    client.link().wait_for(|link| *link == Link::Down).await.unwrap();
    let error = client.retrieve().await.unwrap_err();
    assert!(matches!(error, CircuitError::Disconnected { .. }), "{error}");
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
    let client = CircuitClient::connect(address, plain()).await.unwrap();
    let mut reports = client.reports();
    client.alarms().await.unwrap();
    let report = reports.recv().await.unwrap();
    assert_eq!((report.severity, report.verb.as_str()), (Severity::Major, "REPT ALM EQPT"));
    assert_eq!(report.lines, ["FAN-1:MJ,FAIL"]);
    drop(client);
    let login = Some(Login { user: "x".into(), password: "y".into() });
    let refused = CircuitClient::connect(address, CircuitOptions { login, ..plain() }).await.unwrap_err();
    assert!(refused.to_string().contains("refuses the login of 'x': unknown user (PIUI)"), "{refused}");
    let unused = SocketAddr::from(([127, 0, 0, 1], 1));
    let error = CircuitClient::connect(unused, plain()).await.unwrap_err();
    assert!(matches!(error, CircuitError::Unreachable { .. }), "{error}");
}

/// A switch that takes connections and ends them at once costs ever less: no more calls, and no more lines of
/// the log.
#[tokio::test]
async fn a_switch_that_turns_us_out_at_once_is_called_ever_less_often() {
    let (listener, address) = listen().await;
    let calls = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            drop(stream);
        }
    });
    let begun = std::time::Instant::now();
    let (retry_first, retry_most) = (Duration::from_millis(1), polycast_testing::HANG);
    let client = CircuitClient::connect(address, CircuitOptions { retry_first, retry_most, ..plain() });
    let _client = client.await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Each pause is twice as long as the one before.
    let most = 3 + begun.elapsed().as_millis().ilog2();
    let calls = calls.load(std::sync::atomic::Ordering::SeqCst);
    assert!((2..=most).contains(&calls), "{calls} calls, and {most} may be");
}

#[tokio::test]
async fn a_password_that_a_switch_says_again_is_not_shown() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, |request, tag| match request {
            Request::Login { password, .. } => {
                Some(tl1_answer(tag, Err(("PIUI", format!("'{password}' is no password"))), "OCS", WHEN))
            }
            other => panic!("{other:?}"),
        })
        .await;
    });
    let login = Some(Login { user: "root".into(), password: "s3cret".into() });
    let refused = CircuitClient::connect(address, CircuitOptions { login, ..plain() }).await.unwrap_err();
    let said = refused.to_string();
    assert!(
        said.contains("'***' is no password") && !format!("{said} {refused:?}").contains("s3cret"),
        "{said}"
    );
}

/// A switch in a thread of its own that speaks plain TL1, cuts its answers and repeats what it was sent;
/// gives its address, and what it was asked for.
fn dripping(circuits: Vec<Circuit>) -> (SocketAddr, std::sync::Arc<std::sync::Mutex<Vec<Request>>>) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), std::sync::Arc::default());
    let asks: std::sync::Arc<std::sync::Mutex<Vec<Request>>> = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut circuits) = (stream.unwrap(), circuits.clone());
            let (mut buffer, mut text) = ([0; 1024], String::new());
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                text.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
                while let Some((command, rest)) = text.split_once(';') {
                    let (request, tag) = Plain.parse(command).unwrap();
                    asks.lock().unwrap().push(request.clone());
                    let lines = match &request {
                        Request::Retrieve => Plain.list(&circuits, 8),
                        Request::Login { password, .. } => vec![format!("so it is {password}")],
                        _ => Vec::new(),
                    };
                    match request {
                        Request::Enter(circuit) => circuits.push(circuit),
                        Request::Delete(circuit) => circuits.retain(|other| *other != circuit),
                        _ => {}
                    }
                    let lines: String = lines.iter().map(|line| format!("\t\"{line}\"\n")).collect();
                    let answer = format!("{command};\n\n  ODD 1-1-1 1:1:1\nM  {tag}  COMPLD\n{lines};\n");
                    for piece in answer.as_bytes().chunks(5) {
                        stream.write_all(piece).unwrap();
                    }
                    text = rest.to_string();
                }
            }
        }
    });
    (address, asked)
}

#[test]
fn a_recording_changes_nothing_unless_it_is_told_and_keeps_no_password() {
    let held = Circuit { from: 0, to: 1 };
    let (address, asked) = dripping(vec![held]);
    let login = Some(Login { user: "a".into(), password: "very-secret-7".into() });
    let options = |changes: &[(&str, &str)]| RecordOptions {
        address,
        dialect: "plain".into(),
        ports: None,
        login: login.clone(),
        changes: changes.iter().map(|(from, to)| ((*from).to_string(), (*to).to_string())).collect(),
        timeout: Duration::from_secs(5),
    };
    let changes = |asked: &std::sync::Mutex<Vec<Request>>| {
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        asked
            .into_iter()
            .filter(|one| matches!(one, Request::Enter(_) | Request::Delete(_)))
            .collect::<Vec<_>>()
    };
    let recorded = record(&options(&[])).unwrap();
    assert_eq!(changes(&asked), []);
    let text = recorded.text();
    assert!(!text.contains("very-secret-7") && text.contains("so it is secret"), "{text}");
    assert_eq!(Dialogue::read(&text).unwrap().play(&Plain), Ok(()));
    // A port that has a circuit is left alone, and one that there is not is named before the switch hears
    // of it.
    for (from, to, said) in
        [("3", "2", "has the circuit 1,2"), ("1", "5", "has the circuit 1,2"), ("x", "2", "'x' is no port")]
    {
        let error = record(&options(&[(from, to)])).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(changes(&asked), [], "{from} {to}");
    }
    let recorded = record(&options(&[("3", "4")])).unwrap();
    let made = Circuit { from: 2, to: 3 };
    assert_eq!(changes(&asked), [Request::Enter(made), Request::Delete(made)]);
    let questions: Vec<&str> = recorded.turns.iter().map(|turn| turn.question.as_str()).collect();
    assert_eq!(
        questions,
        ["login a secret", "retrieve", "alarms", "enter 3 4", "retrieve", "delete 3 4", "retrieve"]
    );
    assert_eq!(recorded.turns[4].found, ["1,2", "3,4"]);
}
