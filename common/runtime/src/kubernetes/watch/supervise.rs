use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::lines::{Event, LineError, Lines};
use super::report::Report;
use super::{Resource, WatchEvent, WatchOptions, WatchState, list};
use crate::kubernetes::client::{Answer, Client};
use crate::kubernetes::error::RequestError;
use crate::kubernetes::jitter;

/// The server is asked to end a watch after a time of this range, so that watches move to servers that are new.
const WATCH_LENGTH: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(600));
/// A watch that ends by itself after so long did nothing wrong.
const DECENT_LENGTH: Duration = Duration::from_secs(60);
/// Watches that resume without a reason to wait are spread over this.
const SPREAD: Duration = Duration::from_millis(500);
/// A server may ask to be left alone for no longer.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);
/// So often the same version may be resumed from in vain before the list tells what the watch cannot.
const FRUITLESS_RESUMES: u32 = 3;

pub(super) struct Supervisor {
    client: Client,
    resource: Resource,
    options: WatchOptions,
    to: mpsc::Sender<(&'static str, WatchEvent)>,
    report: Arc<Report>,
    relist: Arc<Notify>,
    returns: watch::Receiver<u64>,
    /// The last version that was told.
    version: u64,
    /// It is an event's, so that the same event again is no news.
    is_an_events: bool,
    /// The silence allowed to a watch of which nothing was heard yet.
    patience: Duration,
    /// Something was heard of this kind once, so that bookmarks are due.
    was_heard: bool,
    resuming: Backoff,
    relisting: Backoff,
    /// Of a kind that the server does not know.
    finding: Backoff,
    /// The next watch begins where a list ended.
    is_after_list: bool,
    /// Resumes in a row that the same version made fruitless.
    fruitless: u32,
}

/// Nobody takes events any more.
struct Closed;

/// What ended a watch.
enum End {
    Closed,
    /// It was asked to end, or has been long enough.
    Over,
    /// Nothing was heard of it, which is no fault where there is nothing to tell.
    Quiet,
    /// `reason` is a word of a closed set or an HTTP status.
    Failed {
        reason: String,
        error: String,
        /// How long the server asks to be left alone.
        retry_after: Option<Duration>,
        /// A server that answers again is worth a try.
        is_outage: bool,
        /// Resuming from the same version may well end in the same way.
        is_fruitless: bool,
    },
    /// There is no resuming.
    Relist {
        reason: &'static str,
        error: Option<String>,
    },
}

impl Supervisor {
    pub(super) fn new(
        client: Client,
        resource: Resource,
        options: WatchOptions,
        to: mpsc::Sender<(&'static str, WatchEvent)>,
        report: Arc<Report>,
        relist: Arc<Notify>,
    ) -> Self {
        let backoff = |longest| Backoff::new(options.shortest_backoff, longest);
        let (resuming, relisting) = (backoff(options.longest_backoff), backoff(options.longest_backoff));
        let finding = backoff(options.longest_backoff_of_none);
        let (patience, returns) = (options.silence, client.returns());
        Self {
            client,
            resource,
            options,
            to,
            report,
            relist,
            returns,
            version: 0,
            is_an_events: false,
            patience,
            was_heard: false,
            resuming,
            relisting,
            finding,
            is_after_list: false,
            fruitless: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let Err(Closed) = self.follow().await;
        let kind = self.resource.kind;
        self.report.failed("closed", "nobody takes its events any more");
        self.report.change(|status| status.state = WatchState::Ended);
        tracing::debug!(kind, "the watch ended: nobody takes its events any more");
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Closed> {
        self.list().await?;
        loop {
            let end = self.watch().await;
            match end {
                End::Closed => return Err(Closed),
                End::Over | End::Quiet => self.pause(jitter::between(Duration::ZERO, SPREAD), false).await,
                End::Failed { reason, error, retry_after, is_outage, is_fruitless } => {
                    self.tell_failure(&reason, &error);
                    self.fruitless = if is_fruitless { self.fruitless + 1 } else { 0 };
                    if self.fruitless > FRUITLESS_RESUMES {
                        self.relist_after_pause().await?;
                        continue;
                    }
                    let wait = self.wait(retry_after);
                    self.pause(wait, is_outage).await;
                }
                End::Relist { reason, error } => {
                    if let Some(error) = error {
                        self.tell_failure(reason, &error);
                    }
                    tracing::info!(kind = self.resource.kind, reason, "listing again");
                    self.relist_after_pause().await?;
                }
            }
        }
    }

    async fn relist_after_pause(&mut self) -> Result<(), Closed> {
        let wait = self.relisting.draw();
        self.pause(wait, false).await;
        self.report.change(|status| status.relists += 1);
        self.list().await
    }

    /// Tells a whole list.
    async fn list(&mut self) -> Result<(), Closed> {
        'list: loop {
            self.fruitless = 0;
            // This list is what was asked for until now.
            self.relist.notified().now_or_never();
            self.report.change(|status| status.state = WatchState::Listing);
            self.tell(WatchEvent::ListBegins).await?;
            let (mut version, mut next) = (None, None::<String>);
            loop {
                let page =
                    list::objects(&self.client, &self.resource, self.options.page, next.as_deref()).await;
                match page {
                    Ok(page) => {
                        self.report.lives(WatchState::Listing);
                        self.resuming.reset();
                        self.finding.reset();
                        // Every page is of the version of the first one.
                        version.get_or_insert(page.version);
                        if !page.items.is_empty() {
                            self.tell(WatchEvent::Listed(page.items)).await?;
                        }
                        if page.next.is_none() {
                            break;
                        }
                        next = page.next;
                    }
                    Err(error) => {
                        self.tell_failure(&error.label(), &error.to_string());
                        if error.code() == Some(404) && self.report.kind_gone() {
                            self.tell(WatchEvent::KindGone).await?;
                        }
                        // The token of a page is good for minutes; then the list has to begin anew.
                        let is_void = next.is_some() && matches!(error.code(), Some(400 | 410));
                        let wait = match error.code() {
                            _ if is_void => self.relisting.draw(),
                            Some(404) => self.finding.draw(),
                            _ => self.wait(error.retry_after()),
                        };
                        self.report.change(|status| status.state = WatchState::Retrying);
                        // Who asks for a list knows that there may be one now.
                        let relist = Arc::clone(&self.relist);
                        let is_asked = tokio::select! {
                            () = self.pause(wait, error.blames_server()) => false,
                            () = relist.notified() => true,
                        };
                        if is_asked {
                            // Who is too early by a moment need not wait for long.
                            self.finding.reset();
                        }
                        if is_void || is_asked {
                            continue 'list;
                        }
                    }
                }
            }
            (self.version, self.is_an_events) = (version.unwrap_or_default(), false);
            self.is_after_list = true;
            let version = self.version;
            self.tell(WatchEvent::ListEnds { version }).await?;
            self.report.listed(version);
            return Ok(());
        }
    }

    /// Watches from the last version until something ends it.
    async fn watch(&mut self) -> End {
        let seconds = jitter::between(WATCH_LENGTH.0, WATCH_LENGTH.1).as_secs();
        let path = self.resource.asking(&format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={seconds}",
            self.version
        ));
        let answer = tokio::select! {
            () = self.relist.notified() => return End::Relist { reason: "asked", error: None },
            answer = self.client.open(&path, "application/json") => answer,
        };
        let Answer { server, url, response } = match answer {
            Ok(answer) => answer,
            Err(error) => return failed(&error),
        };
        let is_quiet = self.patience > self.options.silence;
        self.report.lives(if is_quiet { WatchState::Quiet } else { WatchState::Watching });
        let is_resumed = !std::mem::take(&mut self.is_after_list);
        self.report.change(|status| status.resumes += u64::from(is_resumed));
        let began = Instant::now();
        let mut lines = Lines::new(response.into_body(), self.options.max_line_bytes);
        let mut is_heard = false;
        loop {
            let patience = if is_heard { self.options.silence } else { self.patience };
            let line = tokio::select! {
                biased;
                () = self.relist.notified() => return End::Relist { reason: "asked", error: None },
                line = timeout(patience, lines.next()) => line,
            };
            let line = match line {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) if began.elapsed() >= DECENT_LENGTH.min(self.options.silence) => {
                    return End::Over;
                }
                Ok(Ok(None)) => return plain_failure("ended", "the server ended the watch".to_owned(), true),
                Ok(Err(error @ LineError::Broken(_))) => {
                    return plain_failure("broken", error.to_string(), true);
                }
                Ok(Err(error @ LineError::Half(_))) => {
                    return plain_failure("half-line", error.to_string(), true);
                }
                Ok(Err(error @ LineError::TooLong(_))) => return fruitless("too-long", error.to_string()),
                // A server that began anew knows nothing to tell: only the first silence is a fault then.
                Err(_) if is_heard || std::mem::take(&mut self.was_heard) => {
                    let error = RequestError::Timeout { url, after: patience };
                    self.client.note_failure(server, &error);
                    return plain_failure(
                        "silent",
                        format!("the watch said nothing for {} s", patience.as_secs()),
                        true,
                    );
                }
                Err(_) => {
                    self.patience =
                        (patience * 2).min(self.options.longest_silence.max(self.options.silence));
                    return End::Quiet;
                }
            };
            (is_heard, self.was_heard) = (true, true);
            self.client.note_event();
            self.patience = self.options.silence;
            self.report.lives(WatchState::Watching);
            match Event::read(&line) {
                Ok(Event::Error(status)) => return failed(&status.into_event_error(url)),
                Ok(event) => {
                    if let Some(end) = self.take(event).await {
                        return end;
                    }
                }
                Err(problem) => return fruitless("undecodable", problem),
            }
        }
    }

    /// Tells an event that is news; what comes of it otherwise.
    async fn take(&mut self, event: Event) -> Option<End> {
        let (event, version, is_change) = match event {
            Event::Applied { object, version } => (WatchEvent::Applied { object, version }, version, true),
            Event::Deleted { object, version } => (WatchEvent::Deleted { object, version }, version, true),
            Event::Bookmark { version } => (WatchEvent::Bookmark { version }, version, false),
            Event::Error(_) => return None,
        };
        // A bookmark says that everything up to it was told: an event of its version came too late.
        let is_late = version == self.version && is_change && !self.is_an_events;
        if version < self.version || is_late {
            let error = format!("version {version} came after {}", self.version);
            return Some(End::Relist { reason: "backwards", error: Some(error) });
        }
        self.resuming.reset();
        self.fruitless = 0;
        self.is_an_events = is_change || (self.is_an_events && version == self.version);
        let is_news = version > self.version;
        if is_news && self.tell(event).await.is_err() {
            return Some(End::Closed);
        }
        self.report.change(|status| {
            status.events += u64::from(is_change && is_news);
            status.duplicates += u64::from(is_change && !is_news);
        });
        self.version = version;
        self.report.heard(version);
        None
    }

    async fn tell(&self, event: WatchEvent) -> Result<(), Closed> {
        self.to.send((self.resource.kind, event)).await.map_err(|_| Closed)
    }

    fn tell_failure(&self, reason: &str, error: &str) {
        let kind = self.resource.kind;
        if self.report.failed(reason, error) {
            tracing::warn!(kind, reason, error, "a watch failed; what it told stays in force");
        } else {
            tracing::debug!(kind, reason, error, "a watch failed again");
        }
    }

    /// How long to wait after a failure.
    fn wait(&mut self, retry_after: Option<Duration>) -> Duration {
        self.report.change(|status| status.state = WatchState::Retrying);
        match retry_after {
            // Not everyone at the same moment.
            Some(asked) => asked.min(LONGEST_RETRY_AFTER) + jitter::between(Duration::ZERO, SPREAD * 2),
            None => self.resuming.draw(),
        }
    }

    /// Waits; where an outage is the reason, until a server answers.
    async fn pause(&mut self, wait: Duration, is_outage: bool) {
        self.returns.mark_unchanged();
        tokio::select! {
            () = sleep(wait) => {}
            Ok(()) = self.returns.changed(), if is_outage => sleep(jitter::between(Duration::ZERO, SPREAD * 2)).await,
        }
    }
}

fn failed(error: &RequestError) -> End {
    if error.code() == Some(410) {
        return End::Relist { reason: "gone", error: Some(error.to_string()) };
    }
    // The definition of the kind is gone: the list says so, or what there is of a new one.
    if error.code() == Some(404) {
        return End::Relist { reason: "404", error: Some(error.to_string()) };
    }
    End::Failed {
        reason: error.label(),
        error: error.to_string(),
        retry_after: error.retry_after(),
        is_outage: error.blames_server(),
        is_fruitless: matches!(error, RequestError::Status { version_ahead: true, .. }),
    }
}

fn plain_failure(reason: &str, error: String, is_outage: bool) -> End {
    End::Failed { reason: reason.to_owned(), error, retry_after: None, is_outage, is_fruitless: false }
}

fn fruitless(reason: &str, error: String) -> End {
    End::Failed { reason: reason.to_owned(), error, retry_after: None, is_outage: false, is_fruitless: true }
}
