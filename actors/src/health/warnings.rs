//! Warnings that stand for the life of the process.

use holdfast_protocol::health::HealthWarning;

/// Returns the warnings about how the program was built. `compile_options` are SQLite's, as `PRAGMA compile_options` lists
/// them.
///
/// Without these flags all connections of the process share one page cache behind one mutex; `.cargo/config.toml` says
/// more.
pub fn standing_warnings(compile_options: &[String]) -> Vec<HealthWarning> {
    let has = |option: &str| compile_options.iter().any(|one| one == option);
    let mut missing = Vec::new();
    if has("ENABLE_MEMORY_MANAGEMENT") {
        missing.push("-USQLITE_ENABLE_MEMORY_MANAGEMENT");
    }
    if !has("DEFAULT_MEMSTATUS=0") {
        missing.push("-DSQLITE_DEFAULT_MEMSTATUS=0");
    }
    if missing.is_empty() {
        return Vec::new();
    }
    vec![HealthWarning {
        kind: "sqlite_flags_missing".to_owned(),
        message: format!(
            "SQLite was built without {}: stores wait for each other more than they need to",
            missing.join(" ")
        ),
        remedy: format!("build with LIBSQLITE3_FLAGS=\"{}\"", missing.join(" ")),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_our_build_raise_no_warning_and_others_do() {
        let options = |list: &[&str]| list.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        assert!(standing_warnings(&options(&["DEFAULT_MEMSTATUS=0", "THREADSAFE=1"])).is_empty());
        let warnings = standing_warnings(&options(&["ENABLE_MEMORY_MANAGEMENT", "THREADSAFE=1"]));
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].remedy.contains("-USQLITE_ENABLE_MEMORY_MANAGEMENT -DSQLITE_DEFAULT_MEMSTATUS=0"));
    }
}
