//! Lists of hosts as Slurm and ClusterShell write them: `gpu[01-03,7]-ib[0-1],login`.

/// Hosts of one list. A cluster has fewer.
pub(crate) const HOSTS_MAX: usize = 10_000;

/// Returns the hosts of a list in its order, each once. Numbers keep the zeros that the first one of a range
/// begins with.
///
/// # Errors
/// The sentence says which part is no name and no range.
pub(crate) fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    for part in parts(text) {
        for host in names(part).map_err(|why| format!("'{part}' is no list of hosts: {why}"))? {
            if known.insert(host.clone()) {
                hosts.push(host);
            }
            if hosts.len() > HOSTS_MAX {
                return Err(format!("'{text}' means more than {HOSTS_MAX} names"));
            }
        }
    }
    Ok(hosts)
}

/// Parts between commas that are in no bracket.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_u32);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

/// The names of a part; the last bracket counts fastest.
fn names(part: &str) -> Result<Vec<String>, String> {
    const EXAMPLE: &str = "write gpu-[1-20] for twenty names, or gpu[01-03,7]";
    if part.is_empty() {
        return Err(EXAMPLE.into());
    }
    let Some((before, rest)) = part.split_once('[') else {
        return match part.contains(']') {
            true => Err(EXAMPLE.into()),
            false => Ok(vec![part.to_string()]),
        };
    };
    let (range, after) =
        rest.split_once(']').filter(|(range, _)| !range.contains('[')).ok_or_else(|| EXAMPLE.to_string())?;
    let after = if after.is_empty() { vec![String::new()] } else { names(after)? };
    let mut all = Vec::new();
    for numbers in range.split(',') {
        let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
        let number = |digits: &str| {
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| digits.parse::<u64>().ok()).flatten().ok_or_else(|| EXAMPLE.to_string())
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("{first} is more than {last}"));
        }
        let digits = if first.starts_with('0') { first.len() } else { 1 };
        for number in (from..=to).take(HOSTS_MAX + 1) {
            all.extend(after.iter().map(|after| format!("{before}{number:0digits$}{after}")));
            if all.len() > HOSTS_MAX {
                return Ok(all);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_slurm_writes_them() {
        for (text, hosts) in [
            ("a", "a"),
            ("gpu-[1-3]", "gpu-1 gpu-2 gpu-3"),
            ("h[08-10]", "h08 h09 h10"),
            ("gpu[01-02,7],login", "gpu01 gpu02 gpu7 login"),
            ("n[1-2]-ib[0-1].x", "n1-ib0.x n1-ib1.x n2-ib0.x n2-ib1.x"),
            ("a,b,a", "a b"),
            ("r[1,3][a]", ""),
        ] {
            let found = expand(text);
            match hosts {
                "" => assert!(found.unwrap_err().contains("gpu-[1-20]"), "{text}"),
                hosts => assert_eq!(found.unwrap().join(" "), hosts, "{text}"),
            }
        }
        assert_eq!(expand("h[0-9][0-9][0-9][0-9]").unwrap().len(), 10_000);
        assert!(expand("h[0-9][0-9][0-9][0-9][0-9]").unwrap_err().contains("more than"));
        assert!(expand("h[1-99999999999999]").unwrap_err().contains("more than"));
        for wrong in
            ["", "a,,b", "h[1-", "h]", "h[a-b]", "h[-2]", "h[]", "h[1-2", "h[[1]]", "h[99999999999999999999]"]
        {
            assert!(expand(wrong).unwrap_err().contains("gpu-[1-20]"), "{wrong}");
        }
        assert!(expand("h[2-1]").unwrap_err().contains("2 is more than 1"));
    }
}
