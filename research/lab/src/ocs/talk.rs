//! A circuit switch's conversations with its managers.

use super::{Denial, Fault, Move, NAME, Switch, time_in_words};
use polycast_net::devices::circuits::{Framing, Request, RequestError, tl1_answer};
use polycast_net::devices::telnet::Telnet;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// Commands of one manager at the same time.
const COMMANDS_MAX: usize = 1_024;
/// The longest command, in bytes.
const COMMAND_LEN_MAX: usize = 4_096;

/// Answer that is sent once everything before it has been.
type InOrder = Pin<Box<dyn Future<Output = Option<String>>>>;

/// One manager.
struct Conversation<M> {
    switch: Rc<Switch<M>>,
    answers: mpsc::Sender<String>,
    logged_in: bool,
    /// Answers of a language in which they have no numbers.
    in_order: mpsc::Sender<InOrder>,
    /// Last error in that language.
    last_error: Rc<RefCell<Option<Denial>>>,
}

/// Talks with one manager until it leaves.
pub(super) async fn converse<M: Move + 'static>(stream: TcpStream, switch: Rc<Switch<M>>) {
    // Answers must not wait for more of them.
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = stream.into_split();
    let (answers, mut outgoing) = mpsc::channel::<String>(COMMANDS_MAX);
    let (in_order, mut queue) = mpsc::channel::<InOrder>(COMMANDS_MAX);
    switch.reports.borrow_mut().push(answers.clone());
    let answering = answers.clone();
    tokio::task::spawn_local(async move {
        while let Some(answer) = queue.recv().await {
            // The manager may have left meanwhile.
            if let Some(line) = answer.await
                && answering.send(line).await.is_err()
            {
                return;
            }
        }
    });
    let framing = switch.options.dialect.framing();
    let end_of_command = if framing == Framing::Tl1 { b';' } else { b'\n' };
    let logged_in = switch.options.login.is_none();
    let mut talk = Conversation { switch, answers, logged_in, in_order, last_error: Rc::default() };
    let (mut telnet, mut text, mut buffer) = (Telnet::new(), Vec::new(), [0; 4_096]);
    let mut refusals = Vec::new();
    loop {
        let mut wire = std::mem::take(&mut refusals);
        tokio::select! {
            read = reader.read(&mut buffer) => {
                let Ok(len @ 1..) = read else { return };
                telnet.receive(&buffer[..len], &mut text, &mut refusals);
                while let Some(end) = text.iter().position(|byte| *byte == end_of_command) {
                    let command: Vec<u8> = text.drain(..=end).collect();
                    let command = String::from_utf8_lossy(&command[..end]).into_owned();
                    if !talk.take(&command) {
                        return;
                    }
                }
                if text.len() > COMMAND_LEN_MAX {
                    return;
                }
            }
            answer = outgoing.recv() => {
                let Some(answer) = answer else { return };
                Telnet::send(answer.as_bytes(), &mut wire);
            }
        }
        wire.append(&mut refusals);
        if !wire.is_empty() && writer.write_all(&wire).await.is_err() {
            return;
        }
    }
}

impl<M: Move + 'static> Conversation<M> {
    /// Takes a command; gives whether the conversation goes on.
    fn take(&mut self, command: &str) -> bool {
        let dialect = std::sync::Arc::clone(&self.switch.options.dialect);
        if command.trim().is_empty() {
            return true;
        }
        if let Some((fault, tag)) = fault(command) {
            *self.switch.fault.borrow_mut() = fault;
            return self.answer(&tag, Ok(vec![]));
        }
        match (dialect.parse(command), dialect.framing()) {
            (Ok((request, tag)), Framing::Tl1) => self.obey(request, tag),
            (Err(RequestError { tag, code, text }), Framing::Tl1) => self.answer(&tag, Err((code, text))),
            (Ok((request, _)), Framing::Scpi) => self.obey_in_order(request),
            (Err(RequestError { code, text, .. }), Framing::Scpi) => {
                *self.last_error.borrow_mut() = Some((code, text));
                true
            }
        }
    }

    fn answer(&self, tag: &str, outcome: Result<Vec<String>, Denial>) -> bool {
        self.answers.try_send(tl1_answer(tag, outcome, NAME, &time_in_words())).is_ok()
    }

    /// Returns the answer that can be given at once; `None` if the request is about a circuit.
    fn immediate(&mut self, request: &Request) -> Option<Result<Vec<String>, Denial>> {
        let (dialect, ports) = (&self.switch.options.dialect, self.switch.options.ports);
        Some(match request {
            Request::Login { user, password } => match &self.switch.options.login {
                Some((known, secret)) if (known, secret) != (user, password) => {
                    Err(("PIUI", "unknown user or password".to_string()))
                }
                _ => {
                    self.logged_in = true;
                    Ok(vec![])
                }
            },
            _ if !self.logged_in && dialect.has_login() => Err(("PLNA", "Login Not Active".to_string())),
            Request::Logout { .. } => {
                self.logged_in = self.switch.options.login.is_none();
                Ok(vec![])
            }
            Request::Retrieve => Ok(self.switch.retrieve()),
            Request::Identity | Request::Size => Ok(dialect.introduce(request, ports)),
            Request::Alarms | Request::Header | Request::LastError => Ok(vec![]),
            // Nothing is lit yet, or any more.
            Request::Prepare(circuit) | Request::Dispose(circuit) => {
                self.switch.placed(*circuit).map(|_| vec![])
            }
            Request::Enter(_) | Request::Delete(_) | Request::DeleteFrom(_) => return None,
        })
    }

    fn obey(&mut self, request: Request, tag: String) -> bool {
        if let Some(outcome) = self.immediate(&request) {
            return self.answer(&tag, outcome);
        }
        let Some(done) = self.change(request) else { return false };
        let answers = self.answers.clone();
        tokio::task::spawn_local(async move {
            if let Ok(outcome) = done.await {
                // The manager may have left meanwhile; the circuit stays.
                let _ = answers.try_send(tl1_answer(&tag, outcome.map(|()| vec![]), NAME, &time_in_words()));
            }
        });
        true
    }

    /// In a language without numbers answers come in the order of the questions, and changes have none.
    fn obey_in_order(&mut self, request: Request) -> bool {
        let last_error = Rc::clone(&self.last_error);
        let answer: InOrder = match request {
            Request::LastError => Box::pin(async move {
                let (code, text) = last_error.borrow_mut().take().unwrap_or(("0", "No error".into()));
                // Codes of TL1 are no numbers.
                let code = code.parse::<i32>().unwrap_or(-200);
                Some(format!("{code},\"{text}\"\n"))
            }),
            // As it is then.
            Request::Retrieve => {
                let switch = Rc::clone(&self.switch);
                Box::pin(async move { Some(switch.retrieve().join("\n") + "\n") })
            }
            Request::Header => Box::pin(async move {
                last_error.borrow_mut().take();
                None
            }),
            request => match self.immediate(&request) {
                Some(outcome) => Box::pin(async move {
                    match outcome {
                        Ok(lines) => Some(lines.join("\n") + "\n"),
                        Err(denial) => {
                            *last_error.borrow_mut() = Some(denial);
                            None
                        }
                    }
                }),
                None => {
                    let Some(done) = self.change(request) else { return false };
                    Box::pin(async move {
                        if let Ok(Err(denial)) = done.await {
                            *last_error.borrow_mut() = Some(denial);
                        }
                        None
                    })
                }
            },
        };
        self.in_order.try_send(answer).is_ok()
    }

    /// Begins to change a circuit; `None` if the switch hangs up instead.
    fn change(&self, request: Request) -> Option<oneshot::Receiver<Result<(), Denial>>> {
        let switch = Rc::clone(&self.switch);
        if matches!(request, Request::Enter(_)) && *switch.fault.borrow() == Fault::HangUp {
            return None;
        }
        let (done, receiver) = oneshot::channel();
        tokio::task::spawn_local(async move {
            let outcome = match request {
                Request::Enter(circuit) => match switch.placed(circuit) {
                    Ok(circuit) => switch.enter(circuit).await,
                    Err(denial) => Err(denial),
                },
                Request::Delete(circuit) => match switch.placed(circuit) {
                    Ok(circuit) => switch.delete(circuit).await,
                    Err(denial) => Err(denial),
                },
                Request::DeleteFrom(port) => match switch.place(port) {
                    Ok(place) => switch.delete_from(place).await,
                    Err(denial) => Err(denial),
                },
                _ => Ok(()),
            };
            // The client may have stopped waiting.
            let _ = done.send(outcome);
        });
        Some(receiver)
    }
}

/// `ED-FAULT::REFUSE:7`: how labs make a switch misbehave. No real switch knows it.
fn fault(command: &str) -> Option<(Fault, String)> {
    let command = command.trim().trim_end_matches(';');
    let mut blocks = command.strip_prefix("ED-FAULT::")?.split(':');
    let (mode, tag) = (blocks.next()?, blocks.next()?.to_string());
    let fault = mode.parse().ok()?;
    Some((fault, tag))
}
