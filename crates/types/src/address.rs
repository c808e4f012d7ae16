//! Addresses as they may be printed: what lets in a reader stays out.

use alloc::borrow::Cow;
use alloc::string::String;

/// Stands for what was left out.
const LEFT_OUT: &str = "***";

/// The text with every address in it as it may be printed or logged: without user and password, and without
/// query and fragment, which often sign or name who may read it (`X-Amz-Signature`, `sig`, `token`).
#[must_use]
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let (before, address) = rest.split_at(scheme + 3);
        shown.push_str(before);
        let end = address.find(ends_address).unwrap_or(address.len());
        let (address, after) = address.split_at(end);
        // What a sentence puts behind an address is none of it.
        let end = address.trim_end_matches([':', ';', ',', '.', ')', '\'']).len();
        let (address, marks) = address.split_at(end);
        show(address, &mut shown);
        shown.push_str(marks);
        rest = after;
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

fn ends_address(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '<' | '>' | '`')
}

/// Appends the part after the scheme.
fn show(address: &str, shown: &mut String) {
    let end = address.find(['?', '#']).unwrap_or(address.len());
    let (place, secret) = address.split_at(end);
    let slash = place.find(['/', '\\']).unwrap_or(place.len());
    let host = &place[..slash];
    // A password with a slash in it, which should not be there, makes what is before it look like a host with
    // an odd port.
    let is_host = host.rsplit_once(':').is_none_or(|(_, port)| {
        port.is_empty() || port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit())
    });
    match if is_host { host.rfind('@') } else { place.rfind('@') } {
        None if is_host => shown.push_str(place),
        None => shown.push_str(LEFT_OUT),
        Some(at) => {
            shown.push_str(LEFT_OUT);
            shown.push_str(&place[at..]);
        }
    }
    if let Some(mark) = secret.get(..1) {
        shown.push_str(mark);
        shown.push_str(LEFT_OUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    #[test]
    fn secrets_of_addresses_are_left_out() {
        for (text, shown) in [
            ("https://host/a/model.bin", "https://host/a/model.bin"),
            ("https://host:8080/a?X-Amz-Signature=abc&x=1", "https://host:8080/a?***"),
            ("https://me:secret@host/a", "https://***@host/a"),
            ("https://me:se/cret@host/a", "https://***@host/a"),
            ("https://me:p@ss@host/a#token=5", "https://***@host/a#***"),
            ("https://host/@scope/package", "https://host/@scope/package"),
            ("http://[::1]:80/x?a", "http://[::1]:80/x?***"),
            ("http://u@[::1]/x", "http://***@[::1]/x"),
            (
                "cannot get https://h/a?sig=1: the server answers 403",
                "cannot get https://h/a?***: the server answers 403",
            ),
            ("'https://h/a?sig=1' and http://u:p@i/b.", "'https://h/a?***' and http://***@i/b."),
            ("url:https://h/a?sig=1", "url:https://h/a?***"),
            ("no address at all: a?b@c", "no address at all: a?b@c"),
            ("://", "://"),
            ("https://me:pa?ss@host/a", "https://***?***"),
            ("http://?x", "http://?***"),
        ] {
            assert_eq!(without_secrets(text), shown, "{text}");
            assert_eq!(without_secrets(shown), shown, "{shown}, once more");
        }
    }

    proptest! {
        #[test]
        fn no_secret_is_ever_shown(
            before in "[ -~]{0,20}", user in "[a-z]{0,6}", host in "[a-z]{1,6}", path in "(/[a-z.]{0,5}){0,3}",
            after in "( [ -~]{0,20})?", in_query: bool, in_user: bool,
        ) {
            let secret = "S3CRET/w:i?t#h@all";
            let (as_user, as_query) = match (in_user, in_query) {
                (true, false) => (format!("{user}:{secret}@"), String::new()),
                _ => (String::new(), format!("?sig={secret}")),
            };
            let text = format!("{before} https://{as_user}{host}{path}{as_query}{after}");
            let shown = without_secrets(&text);
            prop_assert!(!shown.contains("S3CRET"), "{}", shown);
        }

        #[test]
        fn whatever_text_comes_it_is_read(text in any::<String>()) {
            let once = without_secrets(&text).into_owned();
            prop_assert_eq!(without_secrets(&once), once.as_str());
        }
    }
}
