//! Queues: making, showing and changing them.

use uuid::Uuid;

use super::{
    client::Client,
    endpoint::{MESSAGE_BYTES_MAX, Transport},
    error::Error,
};
use crate::proto::{
    CreateQueueRequest, GetQueueRequest, GetQueueResponse, ListQueuesRequest, ListQueuesResponse,
    PauseQueueRequest, Queue, QueueStats, ResumeQueueRequest, ServedHandler, UpdateQueueRequest,
    queue_service_client::QueueServiceClient,
};

/// Names and pages are asked for in portions of this many.
const PAGE_SIZE: i32 = 1_000;

/// A queue and how busy it is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// client.submit("default", "text.normalize", "v1").send().await?;
/// let status = client.get_queue("default").await?;
/// assert_eq!((status.queue.queue_id.as_str(), status.stats.running), ("default", 0));
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QueueStatus {
    /// The queue as of the answer.
    pub queue: Queue,
    /// Its figures as of the answer.
    pub stats: QueueStats,
    /// What worker sessions at the node that answered serve for it.
    pub served_here: Vec<ServedHandler>,
}

impl Client {
    /// Makes a queue with a limit of attempts at once over all nodes; 0 means unlimited.
    ///
    /// Reason `QUEUE_EXISTS` if there is one of that name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let queue = client.create_queue("mail", 10).await?;
    /// assert_eq!(queue.max_running, 10);
    /// assert_eq!(client.create_queue("mail", 10).await.unwrap_err().reason(), Some("QUEUE_EXISTS"));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_queue(&self, queue_id: &str, max_running: u32) -> Result<Queue, Error> {
        let request =
            CreateQueueRequest { queue_id: queue_id.to_owned(), max_running, request_id: request_id() };
        let answer = self
            .caller()
            .call("CreateQueue", &request, |transport, request| async move {
                queues(transport).create_queue(request).await
            })
            .await?;
        queue_of("CreateQueue", answer.queue)
    }

    /// Shows a queue with its figures. Reason `QUEUE_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// assert!(!client.get_queue("default").await?.queue.paused);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_queue(&self, queue_id: &str) -> Result<QueueStatus, Error> {
        let request = GetQueueRequest { queue_id: queue_id.to_owned() };
        let GetQueueResponse { queue, stats, served_here } = self
            .caller()
            .call("GetQueue", &request, |transport, request| async move {
                queues(transport).get_queue(request).await
            })
            .await?;
        let queue = queue_of("GetQueue", queue)?;
        Ok(QueueStatus { queue, stats: stats.unwrap_or_default(), served_here })
    }

    /// All queues by name, without their figures.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// client.create_queue("mail", 0).await?;
    /// let names: Vec<_> = client.list_queues().await?.into_iter().map(|queue| queue.queue_id).collect();
    /// assert_eq!(names, ["default", "mail"]);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_queues(&self) -> Result<Vec<Queue>, Error> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListQueuesRequest { page_size: PAGE_SIZE, page_token };
            let ListQueuesResponse { queues: page, next_page_token } = self
                .caller()
                .call("ListQueues", &request, |transport, request| async move {
                    queues(transport).list_queues(request).await
                })
                .await?;
            all.extend(page);
            if next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = next_page_token;
        }
    }

    /// Changes a queue's limit of attempts at once; 0 means unlimited. With `expected_revision` only if the queue
    /// still has it.
    ///
    /// Reasons `QUEUE_NOT_FOUND`, `REVISION_MISMATCH`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let queue = client.get_queue("default").await?.queue;
    /// let changed = client.update_queue("default", 5, Some(queue.revision)).await?;
    /// assert_eq!(changed.max_running, 5);
    /// let late = client.update_queue("default", 7, Some(queue.revision)).await.unwrap_err();
    /// assert_eq!(late.reason(), Some("REVISION_MISMATCH"));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn update_queue(
        &self,
        queue_id: &str,
        max_running: u32,
        expected_revision: Option<u32>,
    ) -> Result<Queue, Error> {
        let request = UpdateQueueRequest {
            queue_id: queue_id.to_owned(),
            max_running: Some(max_running),
            expected_revision,
            request_id: request_id(),
        };
        let answer = self
            .caller()
            .call("UpdateQueue", &request, |transport, request| async move {
                queues(transport).update_queue(request).await
            })
            .await?;
        queue_of("UpdateQueue", answer.queue)
    }

    /// Stops claims of the queue: none commits after the answer. Pausing twice is harmless. Reason `QUEUE_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// assert!(client.pause_queue("default").await?.paused);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause_queue(&self, queue_id: &str) -> Result<Queue, Error> {
        let request = PauseQueueRequest { queue_id: queue_id.to_owned(), request_id: request_id() };
        let answer = self
            .caller()
            .call("PauseQueue", &request, |transport, request| async move {
                queues(transport).pause_queue(request).await
            })
            .await?;
        queue_of("PauseQueue", answer.queue)
    }

    /// Lets claims of the queue go on. Reason `QUEUE_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// client.pause_queue("default").await?;
    /// assert!(!client.resume_queue("default").await?.paused);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume_queue(&self, queue_id: &str) -> Result<Queue, Error> {
        let request = ResumeQueueRequest { queue_id: queue_id.to_owned(), request_id: request_id() };
        let answer = self
            .caller()
            .call("ResumeQueue", &request, |transport, request| async move {
                queues(transport).resume_queue(request).await
            })
            .await?;
        queue_of("ResumeQueue", answer.queue)
    }
}

fn queues(transport: Transport) -> QueueServiceClient<Transport> {
    QueueServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Made once a call, so that its re-sends are recognised.
fn request_id() -> String {
    Uuid::new_v4().to_string()
}

fn queue_of(rpc: &str, queue: Option<Queue>) -> Result<Queue, Error> {
    queue.ok_or_else(|| Error::protocol(format!("{rpc} was answered without a queue")))
}
