use super::*;
use polycast_net::devices::circuits::{
    CircuitClient, CircuitError, CircuitOptions, DIALECTS, Held, Login, Plain, dialect,
};
use polycast_planning::circuits::Connection;
use polycast_testing::HANG;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Mirrors that remember what was done to them.
#[derive(Clone, Default)]
struct Remembered(Rc<RefCell<Vec<(Circuit, Light)>>>);

impl Move for Remembered {
    async fn change(&self, circuit: Circuit, light: Light) -> Result<(), LabError> {
        self.0.borrow_mut().push((circuit, light));
        Ok(())
    }
}

/// Runs `test` with a client of a plain switch of 8 ports whose circuits take `millis`.
fn with_switch(millis: u64, test: impl AsyncFnOnce(CircuitClient, Remembered, SocketAddr)) {
    with_dialect("plain", millis, test);
}

/// The same in another dialect.
fn with_dialect(name: &str, millis: u64, test: impl AsyncFnOnce(CircuitClient, Remembered, SocketAddr)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = listener.local_addr().unwrap();
        let login = Some(("lab".to_string(), "secret".to_string()));
        let (circuit_time, dialect) = (Duration::from_millis(millis), dialect(name, 8).unwrap());
        let options =
            OcsOptions { dialect: Arc::clone(&dialect), listen, ports: 8, circuit_time, login, light: None };
        let mirrors = Remembered::default();
        tokio::task::spawn_local(serve(listener, Rc::new(Switch::new(options, mirrors.clone()))));
        let client =
            CircuitClient::connect(listen, CircuitOptions { dialect, ..with_login("secret") }).await.unwrap();
        test(client, mirrors, listen).await;
    });
}

/// A switch that is late is not given up.
fn patient() -> CircuitOptions {
    CircuitOptions { connect_timeout: HANG, command_timeout: HANG, ..CircuitOptions::new(Arc::new(Plain)) }
}

fn with_login(password: &str) -> CircuitOptions {
    let login = Login { user: "lab".into(), password: password.into() };
    CircuitOptions { login: Some(login), ..patient() }
}

fn circuit(from: u32, to: u32) -> Circuit {
    Circuit { from, to }
}

async fn circuits(client: &CircuitClient) -> Vec<Circuit> {
    client.retrieve().await.unwrap().into_iter().map(|Held { circuit, .. }| circuit).collect()
}

#[test]
fn it_speaks_every_dialect() {
    for name in DIALECTS {
        with_dialect(name, 2, async |client, mirrors, address| {
            let dialect = dialect(name, 8).unwrap();
            let of = |from, to| circuit(dialect.nth_port(from), dialect.nth_port(to));
            let (one, other) = (of(0, 4), of(1, 5));
            let (a, b) = tokio::join!(client.enter(one), client.enter(other));
            assert_eq!((a, b), (Ok(()), Ok(())), "{name}");
            assert_eq!(circuits(&client).await, [one, other], "{name}");
            let taken = client.enter(of(2, 5)).await.unwrap_err().to_string();
            assert!(taken.contains("has one of these ports already"), "{name}: {taken}");
            client.delete(one).await.unwrap();
            assert_eq!(circuits(&client).await, [other], "{name}");
            assert_eq!(mirrors.0.borrow().last(), Some(&(circuit(0, 4), Light::Dark)), "{name}");
            let nowhere = client.enter(of(3, 8)).await.unwrap_err();
            assert!(matches!(nowhere, CircuitError::Denied { .. }), "{name}: {nowhere}");
            assert_eq!(client.size().await.unwrap().unwrap_or((8, 8)), (8, 8), "{name}");
            assert_eq!(client.alarms().await.unwrap(), Vec::<String>::new(), "{name}");
            // A user whom the switch does not know is told so in one sentence.
            let wrong = CircuitOptions { dialect: Arc::clone(&dialect), ..with_login("guess") };
            match CircuitClient::connect(address, wrong).await {
                Ok(_) => assert!(!dialect.has_login(), "{name}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        said.contains("refuses the login of 'lab': unknown user or password"),
                        "{name}: {said}"
                    );
                    assert!(!said.contains("guess"), "{said}");
                }
            }
        });
    }
}

#[test]
fn circuits_come_dark_then_partly_then_whole() {
    with_switch(4, async |client, mirrors, _| {
        client.enter(circuit(0, 4)).await.unwrap();
        assert_eq!(*mirrors.0.borrow(), [(circuit(0, 4), Light::Partial), (circuit(0, 4), Light::Full)]);
        let (a, b) = tokio::join!(client.enter(circuit(4, 0)), client.enter(circuit(1, 5)));
        assert_eq!((a, b), (Ok(()), Ok(())));
        assert_eq!(circuits(&client).await, [circuit(0, 4), circuit(1, 5), circuit(4, 0)]);
        let mut reports = client.reports();
        client.delete(circuit(0, 4)).await.unwrap();
        assert_eq!(mirrors.0.borrow().last(), Some(&(circuit(0, 4), Light::Dark)));
        assert_eq!(reports.recv().await.unwrap().lines, ["1,5:DLT"]);
        assert_eq!(circuits(&client).await, [circuit(1, 5), circuit(4, 0)]);
    });
}

#[test]
fn what_cannot_be_is_denied_with_its_reason() {
    with_switch(0, async |client, mirrors, address| {
        client.enter(circuit(0, 4)).await.unwrap();
        for (refused, part) in [
            (client.enter(circuit(0, 5)).await, "circuit 1,5 has one of these ports"),
            (client.enter(circuit(1, 4)).await, "circuit 1,5 has one of these ports"),
            (client.enter(circuit(1, 8)).await, "no port 9: the ports are 1 to 8"),
            (client.enter(circuit(1, 1)).await, "joined to itself"),
            (client.delete(circuit(0, 5)).await, "no circuit 1,6"),
        ] {
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(*mirrors.0.borrow(), [(circuit(0, 4), Light::Full)]);
        let wrong = CircuitClient::connect(address, with_login("guess")).await.unwrap_err();
        assert!(matches!(wrong, CircuitError::Login { .. }), "{wrong}");
        let stranger = CircuitClient::connect(address, patient()).await.unwrap();
        let denied = stranger.retrieve().await.unwrap_err();
        assert!(denied.to_string().contains("Login Not Active"), "{denied}");
    });
}

#[test]
fn it_misbehaves_when_it_is_told_to() {
    with_switch(0, async |client, mirrors, address| {
        let tell = async |mode: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("ED-FAULT::{mode}:1;").as_bytes()).await.unwrap();
            assert!(stream.read(&mut [0; 256]).await.unwrap() > 0);
        };
        tell("REFUSE").await;
        assert!(client.enter(circuit(0, 1)).await.unwrap_err().to_string().contains("do not move"));
        tell("LIE").await;
        client.enter(circuit(0, 1)).await.unwrap();
        assert_eq!(circuits(&client).await, []);
        tell("DARK").await;
        client.enter(circuit(0, 1)).await.unwrap();
        assert_eq!(circuits(&client).await, [circuit(0, 1)]);
        assert_eq!(*mirrors.0.borrow(), []);
        tell("HANGUP").await;
        let lost = client.enter(circuit(2, 3)).await.unwrap_err();
        assert!(matches!(lost, CircuitError::Lost { .. }), "{lost}");
    });
}

#[test]
fn it_speaks_the_planners_dialect() {
    let connection = Connection { from: 0, to: 120 };
    let circuit = circuit(connection.from, connection.to);
    assert_eq!(connection.tl1_enter(7), Plain.enter(circuit)[0].emit(7));
    assert_eq!(connection.tl1_delete(7), Plain.delete(circuit)[0].emit(7));
}

#[test]
fn time_is_written_as_tl1_does() {
    let text = time_in_words();
    let digits = |range: std::ops::Range<usize>| text[range].parse::<u32>().unwrap();
    assert_eq!(text.len(), 17);
    assert!((1..=12).contains(&digits(3..5)) && (1..=31).contains(&digits(6..8)), "{text}");
}
