//! What a name may look like.

/// The longest queue, handler or version name, in bytes.
pub const NAME_LEN_MAX: usize = 128;
/// The longest idempotency key, in bytes.
pub const KEY_LEN_MAX: usize = 255;

/// Checks a queue's name.
pub fn check_queue_id(name: &str) -> Result<(), String> {
    check_name(name, "._-")
}

/// Checks a handler's name, or a version.
pub fn check_handler(name: &str) -> Result<(), String> {
    check_name(name, "._-/")
}

fn check_name(name: &str, punctuation: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || punctuation.contains(c);
    if name.is_empty() {
        return Err("is required".to_owned());
    }
    if name.len() > NAME_LEN_MAX {
        return Err(format!("has {} bytes; at most {NAME_LEN_MAX} are allowed", name.len()));
    }
    if !name.chars().all(allowed) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!("must be letters, digits and {punctuation}, beginning with a letter or digit"));
    }
    Ok(())
}

/// Checks an idempotency key: visible ASCII, so that every database compares it byte for byte.
pub fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() {
        return Err("is required: a name of your own for this operation".to_owned());
    }
    if key.len() > KEY_LEN_MAX {
        return Err(format!("has {} bytes; at most {KEY_LEN_MAX} are allowed", key.len()));
    }
    if !key.bytes().all(|b| (0x21..=0x7E).contains(&b)) {
        return Err("must be visible ASCII characters, without blanks".to_owned());
    }
    Ok(())
}

/// Checks a label for people, such as a worker's name.
pub fn check_label(label: &str) -> Result<(), String> {
    if label.is_empty() {
        return Err("is required".to_owned());
    }
    if label.chars().count() > NAME_LEN_MAX {
        return Err(format!("has more than {NAME_LEN_MAX} characters"));
    }
    if label.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_alphabet_and_length() {
        for good in ["a", "0", "A.b_c-9", &"x".repeat(128)] {
            assert_eq!(check_queue_id(good), Ok(()), "{good}");
        }
        for bad in ["", ".a", "-a", "a b", "a/b", "é", "a\n", "ß", &"x".repeat(129)] {
            assert!(check_queue_id(bad).is_err(), "{bad}");
        }
        assert_eq!(check_handler("text/normalize"), Ok(()));
        assert!(check_handler("/text").is_err());
    }

    #[test]
    fn keys_are_visible_ascii() {
        for good in ["!", "~", "order-1/ü".trim_end_matches('ü'), &"k".repeat(255)] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in ["", "k ", " k", "é", "k\t", "\u{7f}", &"k".repeat(256)] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn labels_are_counted_in_characters_and_carry_no_controls() {
        for good in ["a", "worker of Zoë", &"é".repeat(128)] {
            assert_eq!(check_label(good), Ok(()), "{good}");
        }
        for bad in ["", "a\nb", "\u{1b}[31m", "\u{7f}", &"é".repeat(129)] {
            assert!(check_label(bad).is_err(), "{bad:?}");
        }
    }
}
