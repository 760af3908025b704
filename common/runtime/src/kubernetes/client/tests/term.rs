use super::*;

const TERM: Term = Term { manager: "portway-test", number: 7 };

#[tokio::test(start_paused = true)]
async fn every_write_says_of_which_term_it_is_where_admission_sees_it() {
    let (client, mut server) = scripted(&["http://a"]);
    let in_term = client.in_term(TERM);
    for method in [Method::POST, Method::PUT, Method::PATCH] {
        let request = ask(&in_term, method);
        let asked = server.next().await;
        assert_eq!(
            (asked.query["x"].as_str(), asked.query["fieldManager"].as_str()),
            ("1", "portway-test/7")
        );
        asked.json(200, &json!({}));
        request.await.unwrap().unwrap();
    }
    let request = ask(&in_term, Method::GET);
    let asked = server.next().await;
    assert_eq!(asked.query.len(), 1);
    asked.json(200, &json!({}));
    request.await.unwrap().unwrap();

    let delete = |client: &Client, is_graceful: bool| {
        let client = client.clone();
        let deletion = Deletion { uid: "u-1", version: 5, is_graceful };
        tokio::spawn(async move { client.delete("/api/v1/nodes/a", deletion).await })
    };
    let preconditions = json!({"uid": "u-1", "resourceVersion": "5"});
    for (client, is_graceful, grace) in
        [(&in_term, false, json!(7)), (&in_term, true, json!(null)), (&client, false, json!(null))]
    {
        let request = delete(client, is_graceful);
        let asked = server.next().await;
        assert_eq!((asked.path.as_str(), asked.query.len()), ("/api/v1/nodes/a", 0));
        let options: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
        assert_eq!((&options["preconditions"], &options["gracePeriodSeconds"]), (&preconditions, &grace));
        asked.json(200, &json!({}));
        request.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_policy_of_terms_refuses_is_told_from_what_others_do() {
    let (client, mut server) = scripted(&["http://a"]);
    let in_term = client.in_term(TERM);
    let denied = "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'portway-test-term' with binding 'b' denied request: no";
    let others = denied.replace("portway-test-term", "portway-test-term-of-others");
    for (client, message, label) in
        [(&in_term, denied, "other-term"), (&in_term, &*others, "422"), (&client, denied, "422")]
    {
        let request = ask(client, Method::PATCH);
        server.next().await.json(422, &json!({"kind": "Status", "reason": "Invalid", "message": message}));
        let error = request.await.unwrap().unwrap_err();
        assert_eq!(error.label(), label);
        assert!(error.to_string().contains(message), "{error}");
    }
}
