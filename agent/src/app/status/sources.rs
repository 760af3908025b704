//! What is said of the sources that a person should look at.

use crate::api::{ApiServer, BrokenFile, Source, Watch, counted};

pub(super) fn warnings(sources: &[Source], late: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    for source in sources {
        if source.state == "missing" {
            warnings.push(format!("{} is missing; its last objects are served", source.path));
        }
        warnings.extend(source.broken.iter().map(broken_file));
        if let Some(api_server) = &source.api_server {
            warnings.extend(of_api_server(&source.path, api_server));
        }
    }
    if !late.is_empty() {
        let names = late.join(", ");
        warnings.push(format!(
            "{names}: not read to the end yet; what an earlier agent left is not removed before, and served meanwhile"
        ));
    }
    warnings
}

fn of_api_server(url: &str, api_server: &ApiServer) -> Vec<String> {
    let mut warnings = Vec::new();
    let error = |error: &Option<String>| error.as_ref().map_or_else(String::new, |e| format!(": {e}"));
    if api_server.reachable == Some(false) {
        let since = api_server.last_success_seconds.map_or_else(
            || "has not answered yet".to_owned(),
            |seconds| format!("last answered {seconds:.0} s ago"),
        );
        warnings.push(format!(
            "the API server {url} cannot be reached ({since}); services are served as last seen{}",
            error(&api_server.last_error)
        ));
    }
    if let Some(error) = &api_server.credentials_error {
        warnings
            .push(format!("new credentials for the API server cannot be used; the old ones are: {error}"));
    }
    for watch in &api_server.watches {
        if watch.is_stale() {
            let Watch { kind, age_seconds, last_error, .. } = watch;
            warnings.push(format!(
                "the watch of {kind} has been silent for {age_seconds:.0} s; what it last told is served{}",
                error(last_error)
            ));
        } else if !watch.synced && watch.state == "retrying" && api_server.reachable != Some(false) {
            warnings.push(format!("{} cannot be listed{}", watch.kind, error(&watch.last_error)));
        }
    }
    warnings
}

fn broken_file(broken: &BrokenFile) -> String {
    let BrokenFile { path, reason, kept_objects } = broken;
    if *kept_objects == 0 {
        return format!("{path} is not used: {reason}");
    }
    let objects = counted(*kept_objects, "object of before is", "objects of before are");
    format!("{path} is broken; its {objects} served: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_counts_in_the_singular_too() {
        let broken = |kept_objects| {
            broken_file(&BrokenFile { path: "a.yaml".to_owned(), reason: "no".to_owned(), kept_objects })
        };
        assert_eq!(broken(0), "a.yaml is not used: no");
        assert_eq!(broken(1), "a.yaml is broken; its 1 object of before is served: no");
        assert_eq!(broken(3), "a.yaml is broken; its 3 objects of before are served: no");
    }

    #[test]
    fn a_silent_watch_and_a_server_that_is_gone_are_told_and_a_quiet_kind_is_not() {
        let watch = |kind: &str, state: &str, age_seconds| Watch {
            kind: kind.to_owned(),
            state: state.to_owned(),
            synced: true,
            age_seconds,
            ..Watch::default()
        };
        let source = |reachable, watches| Source {
            path: "https://a".to_owned(),
            api_server: Some(ApiServer {
                reachable: Some(reachable),
                last_error: Some("refused".to_owned()),
                last_success_seconds: Some(70.4),
                watches,
                ..ApiServer::default()
            }),
            ..Source::default()
        };
        let well = [watch("Service", "watching", 64.0), watch("Node", "quiet", 500.0)];
        assert_eq!(warnings(&[source(true, well.to_vec())], &[]), Vec::<String>::new());
        let ill = [watch("Service", "watching", 66.0), watch("Pod", "ended", 0.0)];
        let said = warnings(&[source(false, ill.to_vec())], &["Pod".to_owned()]);
        for (text, start) in said.iter().zip([
            "the API server https://a cannot be reached (last answered 70 s ago)",
            "the watch of Service has been silent for 66 s",
            "the watch of Pod has been silent for 0 s",
            "Pod: not read to the end yet",
        ]) {
            assert!(text.starts_with(start), "{said:?}");
        }
        assert_eq!(said.len(), 4);
    }

    #[test]
    fn a_list_that_is_refused_is_told_with_the_servers_words() {
        let watches = vec![Watch {
            kind: "Pod".to_owned(),
            state: "retrying".to_owned(),
            last_error: Some("403 Forbidden".to_owned()),
            ..Watch::default()
        }];
        let api_server = Some(ApiServer { reachable: Some(true), watches, ..ApiServer::default() });
        let said = warnings(&[Source { api_server, ..Source::default() }], &[]);
        assert_eq!(said, ["Pod cannot be listed: 403 Forbidden"]);
    }
}
