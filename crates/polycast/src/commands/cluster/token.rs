//! `polycast token`: what lets agents in at a manager that has an authority of its own.

use crate::args::cluster::TokenCommand;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_manager::authority::{Authority, AuthorityError, Standing};
use polycast_net::tls::Utc;
use serde_json::json;
use std::fmt::Write as _;

impl From<AuthorityError> for Failure {
    fn from(error: AuthorityError) -> Self {
        Failure::input(error.to_string())
    }
}

/// Makes, lists and revokes tokens.
pub(super) fn run(command: &TokenCommand, format: Format) -> Result<Exit, Failure> {
    match command {
        TokenCommand::New { name, span, authority } => {
            let authority = Authority::open(&authority.ca)?;
            let token = authority.new_token(name, std::time::Duration::from_nanos(span.0))?;
            let until = authority.tokens()?.into_iter().find(|known| known.id == token.id);
            let until = until.map_or(0, |known| known.until_unix_s);
            let document =
                json!({ "id": token.id, "name": name, "token": token.to_string(), "until_unix_s": until });
            output::result(format, &document, &token.to_string())?;
            output::say(&format!(
                "on {name}: polycast agent --manager ADDR --name {name} --token TOKEN, before {}",
                Utc(until)
            ));
        }
        TokenCommand::Ls(authority) => {
            let tokens = Authority::open(&authority.ca)?.tokens()?;
            let mut text = String::new();
            for token in &tokens {
                let standing = match token.standing {
                    Standing::Good => format!("until {}", Utc(token.until_unix_s)),
                    Standing::Used => "used".to_string(),
                    Standing::Expired => format!("expired {}", Utc(token.until_unix_s)),
                };
                let _ = writeln!(text, "{}  {}  {standing}", token.id, token.name);
            }
            output::result(format, &json!(tokens), text.trim_end())?;
        }
        TokenCommand::Revoke { id, authority } => {
            Authority::open(&authority.ca)?.revoke_token(id)?;
            output::result(format, &json!({ "id": id, "revoked": true }), &format!("revoked {id}"))?;
        }
    }
    Ok(Exit::Done)
}
