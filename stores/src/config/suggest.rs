//! "Did you mean": the nearest known word.

/// Returns the candidate nearest to `word`, if one is near enough to be a slip: a third of its letters, at least one.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Counts the letters to insert, delete or replace to turn one word into the other (Levenshtein 1966), ignoring case.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, letter) in left.to_lowercase().chars().enumerate() {
        let mut diagonal = above;
        let mut before = above + 1;
        for (cell, other) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = *cell;
            before = replaced.min(before + 1).min(diagonal + 1);
            *cell = before;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted() {
        for (left, right, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
            ("Port", "port", 0),
            ("prot", "port", 2),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }

    #[test]
    fn only_slips_are_suggested() {
        let known = ["port", "host", "enabled"];
        assert_eq!(nearest("enabeld", known), Some("enabled"));
        assert_eq!(nearest("prt", known), Some("port"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
    }
}
