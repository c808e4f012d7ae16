//! `polycast token`: what lets agents in at a manager that has an authority of its own.

use crate::args::cluster::TokenCommand;
use crate::exit::{Exit, Failure};
use crate::hostlist;
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
        TokenCommand::New { name, uses, span, authority } => {
            let authority = Authority::open(&authority.ca)?;
            let (names, span) = (names(name)?, std::time::Duration::from_nanos(span.0));
            match uses {
                None => make(&authority, &names, span, format)?,
                Some(uses) => make_shared(&authority, (&names, *uses), span, format)?,
            }
        }
        TokenCommand::Ls(authority) => {
            let tokens = Authority::open(&authority.ca)?.tokens()?;
            let mut text = String::new();
            let width = tokens.iter().map(|token| token.name.chars().count()).max().unwrap_or(0);
            for token in &tokens {
                let standing = match token.standing {
                    Standing::Good if token.uses > 1 => {
                        format!("used {} of {}, until {}", token.used, token.uses, Utc(token.until_unix_s))
                    }
                    Standing::Good => format!("until {}", Utc(token.until_unix_s)),
                    Standing::Used => "used".to_string(),
                    Standing::Expired => format!("expired {}", Utc(token.until_unix_s)),
                };
                let _ = writeln!(text, "{}  {:width$}  {standing}", token.id, token.name);
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

/// Makes a token for each name. Alone it is all that is printed, since scripts take it from there.
fn make(
    authority: &Authority,
    names: &[String],
    span: std::time::Duration,
    format: Format,
) -> Result<(), Failure> {
    let mut documents = Vec::new();
    let mut text = String::new();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut last = 0;
    for name in names {
        let token = authority.new_token(name, span)?;
        let until = authority.tokens()?.into_iter().find(|known| known.id == token.id);
        last = until.map_or(0, |known| known.until_unix_s);
        documents
            .push(json!({ "id": token.id, "name": name, "token": token.to_string(), "until_unix_s": last }));
        if names.len() > 1 {
            let _ = write!(text, "{name:width$}  ");
        }
        let _ = writeln!(text, "{token}");
    }
    let agent = match names {
        [name] => name,
        _ => "NAME",
    };
    match &documents[..] {
        [document] => output::verbatim(format, document, &text)?,
        several => output::verbatim(format, &several, &text)?,
    }
    output::say(&format!(
        "on {agent}: polycast agent --manager ADDR --name {agent} --token TOKEN, before {}",
        Utc(last)
    ));
    Ok(())
}

/// Makes one token for all names.
fn make_shared(
    authority: &Authority,
    (names, uses): (&[String], usize),
    span: std::time::Duration,
    format: Format,
) -> Result<(), Failure> {
    let token = authority.new_shared_token(names, uses, span)?;
    let until = authority.tokens()?.into_iter().find(|known| known.id == token.id);
    let until = until.map_or(0, |known| known.until_unix_s);
    let document = json!({
        "id": token.id, "name": names.join(","), "uses": uses, "token": token.to_string(), "until_unix_s": until,
    });
    output::verbatim(format, &document, &format!("{token}\n"))?;
    output::say(&format!(
        "on {uses} of {}: polycast agent --manager ADDR --name NAME --token TOKEN, before {}",
        output::counted(names.len(), "machine"),
        Utc(until)
    ));
    Ok(())
}

/// The names that are meant: `gpu-[1-3]` are gpu-1, gpu-2 and gpu-3.
fn names(given: &[String]) -> Result<Vec<String>, Failure> {
    hostlist::expand(&given.join(",")).map_err(Failure::input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_range_are_meant_one_by_one() {
        let of = |texts: &[&str]| {
            names(&texts.iter().map(ToString::to_string).collect::<Vec<_>>())
                .map_err(|failure| failure.message)
        };
        assert_eq!(of(&["gpu-1"]).unwrap(), ["gpu-1"]);
        assert_eq!(
            of(&["gpu-[9-11].rack", "db"]).unwrap(),
            ["gpu-9.rack", "gpu-10.rack", "gpu-11.rack", "db"]
        );
        assert_eq!(of(&["h[08-10]"]).unwrap(), ["h08", "h09", "h10"]);
        for wrong in ["h[1-", "h]", "h[a-b]", "h[-2]", "h[1-2"] {
            assert!(of(&[wrong]).unwrap_err().contains("gpu-[1-20]"), "{wrong}");
        }
        assert!(of(&["h[1-20000]"]).unwrap_err().contains("more than 10000 names"));
        assert!(of(&["h[0-18446744073709551615]"]).is_err());
    }
}
