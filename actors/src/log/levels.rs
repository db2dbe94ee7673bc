//! Which events are logged: a level for all, and levels for single targets.

use std::fmt;
use std::str::FromStr;

use holdfast_stores::log::LogLevel;

/// Levels by target. The longest target that an event's target starts with decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    default: Option<LogLevel>,
    /// Longest first.
    targets: Vec<(String, Option<LogLevel>)>,
}

/// A text that gives no levels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` in the log levels `{text}` is neither a level nor `target=level`")]
pub struct InvalidLevels {
    /// The part that is wrong.
    pub part: String,
    /// The whole text.
    pub text: String,
}

impl Levels {
    /// Says whether an event of `target` and `level` is logged.
    pub fn enabled(&self, target: &str, level: LogLevel) -> bool {
        let own = self.targets.iter().find(|(prefix, _)| covers(prefix, target)).map(|(_, level)| *level);
        own.unwrap_or(self.default).is_some_and(|most| level <= most)
    }

    /// Returns the least grave level that any target logs; `None` when nothing is logged.
    pub fn most_verbose(&self) -> Option<LogLevel> {
        self.targets.iter().filter_map(|(_, level)| *level).chain(self.default).max()
    }
}

/// `a::b` covers `a::b` and `a::b::c`, not `a::bc`.
fn covers(prefix: &str, target: &str) -> bool {
    target.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

impl Default for Levels {
    fn default() -> Self {
        Self { default: Some(LogLevel::Info), targets: Vec::new() }
    }
}

impl FromStr for Levels {
    type Err = InvalidLevels;

    fn from_str(text: &str) -> Result<Self, InvalidLevels> {
        let level = |part: &str, name: &str| match name.trim() {
            "off" => Ok(None),
            name => name
                .parse()
                .map(Some)
                .map_err(|_invalid| InvalidLevels { part: part.trim().to_owned(), text: text.to_owned() }),
        };
        let mut levels = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('=') {
                None => levels.default = level(part, part)?,
                Some((target, name)) => levels.targets.push((target.trim().to_owned(), level(part, name)?)),
            }
        }
        levels.targets.sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        Ok(levels)
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |level: Option<LogLevel>| level.map_or("off", LogLevel::name);
        formatter.write_str(name(self.default))?;
        self.targets.iter().try_for_each(|(target, level)| write!(formatter, ",{target}={}", name(*level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_target_decides() {
        let levels: Levels = "warn, a=info, a::b=off, a::b::c=trace".parse().unwrap();
        for (target, level, logged) in [
            ("z", LogLevel::Warn, true),
            ("z", LogLevel::Info, false),
            ("a", LogLevel::Info, true),
            ("ab", LogLevel::Info, false),
            ("a::b", LogLevel::Error, false),
            ("a::b::c::d", LogLevel::Trace, true),
        ] {
            assert_eq!(levels.enabled(target, level), logged, "{target} {level}");
        }
        assert_eq!(levels.most_verbose(), Some(LogLevel::Trace));
        assert_eq!(levels.to_string().parse::<Levels>().unwrap(), levels);
        assert_eq!("off".parse::<Levels>().unwrap().most_verbose(), None);
    }

    #[test]
    fn a_wrong_part_is_named() {
        let error = "info,a=loud".parse::<Levels>().unwrap_err();
        assert_eq!(error.to_string(), "`a=loud` in the log levels `info,a=loud` is neither a level nor `target=level`");
    }
}
