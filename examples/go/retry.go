// The retry scenario: a task fails once in a way that is safe to retry, waits out its backoff, runs again, succeeds.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	pb "orbit/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const limit = time.Minute

// normalize refuses before it does anything: that, and only that, makes the failure safe to retry.
func normalize(_ context.Context, dispatch *pb.Dispatch) (interface{}, error) {
	if dispatch.AttemptNumber == 1 {
		return nil, Retryable("TEMPORARY_REJECTION", "not now")
	}
	var input struct{ Text string }
	if err := json.Unmarshal([]byte(dispatch.Payload), &input); err != nil {
		return nil, err
	}
	return map[string]string{"text": strings.ToUpper(strings.TrimSpace(input.Text))}, nil
}

// again calls until the server answers: every write of Orbit may be sent again.
func again(call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for delay := 50 * time.Millisecond; ; delay *= 2 {
		err := call(ctx)
		switch status.Code(err) {
		case codes.OK:
			return
		case codes.Unavailable, codes.ResourceExhausted:
			if delay > 2*time.Second {
				delay = 2 * time.Second
			}
			time.Sleep(jitter(delay))
		default:
			log.Fatal(err)
		}
	}
}

func main() {
	url := os.Getenv("ORBIT_URL")
	if url == "" {
		url = "http://127.0.0.1:7070"
	}
	address := strings.TrimPrefix(url, "http://")
	time.AfterFunc(limit, func() { log.Fatal("not done in time") })
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	queues, tasks := pb.NewQueueServiceClient(connection), pb.NewTaskServiceClient(connection)

	run := newID()
	queue := "retry-" + run[:8]
	again(func(ctx context.Context) error {
		_, err := queues.CreateQueue(ctx, &pb.CreateQueueRequest{QueueId: queue, RequestId: run})
		return err
	})
	worker := newWorker(address, "go-example", []string{queue})
	worker.handle("text.normalize", "v1", normalize)
	ended := make(chan error)
	go func() { ended <- worker.run() }()

	number := func(n uint32) *uint32 { return &n }
	var task *pb.Task
	again(func(ctx context.Context) error {
		answer, err := tasks.SubmitTask(ctx, &pb.SubmitTaskRequest{
			QueueId: queue, IdempotencyKey: "retry-example/" + run, Handler: "text.normalize", HandlerVersion: "v1",
			PayloadVersion: "v1", Payload: `{"text":"  safe retry  "}`, TaskTimeoutMs: number(60_000),
			Retry: &pb.RetryPolicy{
				MaxAttempts: number(3), InitialDelayMs: number(500), MaxDelayMs: number(2_000),
				AttemptTimeoutMs: number(10_000),
			},
		})
		task = answer.GetTask()
		return err
	})
	id := task.TaskId
	fmt.Fprintf(os.Stderr, "submitted task %s to queue %s\n", id, queue)
	for task.State != pb.TaskState_TASK_STATE_SUCCEEDED {
		again(func(ctx context.Context) error {
			answer, err := tasks.WaitTask(ctx, &pb.WaitTaskRequest{
				TaskId: id, WaitMs: number(10_000), View: pb.TaskView_TASK_VIEW_FULL,
			})
			if err == nil {
				task = answer.Task
			}
			return err
		})
		switch task.State {
		case pb.TaskState_TASK_STATE_FAILED, pb.TaskState_TASK_STATE_NEEDS_REVIEW:
			log.Fatalf("unexpected end: %v", task)
		}
	}
	var attempts []*pb.Attempt
	again(func(ctx context.Context) error {
		answer, err := tasks.ListAttempts(ctx, &pb.ListAttemptsRequest{TaskId: id})
		attempts = answer.GetAttempts()
		return err
	})
	state := strings.TrimPrefix(task.State.String(), "TASK_STATE_")
	fmt.Printf("task=%s state=%s attempts=%d first_retryable=%t result=%s\n",
		id, state, len(attempts), attempts[0].Retryable, task.Result)

	drained, running := worker.drain(limit)
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	fmt.Printf("worker_drained=%t started=%d confirmed=%d running=%d\n",
		drained, worker.started, worker.confirmed, running)
}
