package main

// A worker for Orbit on grpc-go. The numbers in brackets are the rules of docs/worker-protocol.md; the Python example
// keeps the same ones, with more words.

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	mathrand "math/rand"
	"sync"
	"time"

	pb "orbit/v1"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	safeRetry       = "safe-retry/1"
	answerTimeout   = 5 * time.Second
	pingEvery       = 5 * time.Second
	silenceMax      = 15 * time.Second
	messageBytesMax = 20 << 20
)

// Failure is how a handler says that nothing happened. Any other error leaves the effect in doubt [R6].
type Failure struct {
	Outcome       pb.Outcome
	Code, Message string
	Retryable     bool
}

func (f *Failure) Error() string { return f.Code + ": " + f.Message }

// Retryable means: nothing happened, or doing it again is harmless.
func Retryable(code, message string) error {
	return &Failure{pb.Outcome_OUTCOME_FAILED, code, message, true}
}

// Handler runs one attempt. Its context ends when a cancel was asked for, the lease is lost, or the time is over.
type Handler func(ctx context.Context, dispatch *pb.Dispatch) (result interface{}, err error)

// Attempt is one attempt that this process holds.
type Attempt struct {
	dispatch        *pb.Dispatch
	ref             *pb.AttemptRef
	ctx             context.Context
	stop            context.CancelFunc
	started, lost   bool
	cancelRequested bool
	askedAt         time.Time // when the oldest question about the lease that has no answer was sent
	confirmedUntil  time.Time
}

// ask notes that a question about the lease is being sent.
func (a *Attempt) ask() {
	if a.askedAt.IsZero() {
		a.askedAt = time.Now()
	}
}

// learn counts the lease from when the question was sent, less a margin [R3].
func (a *Attempt) learn(lease *pb.LeaseStatus) {
	if !lease.GetValid() {
		a.lost = true // for good
		a.stop()
	} else if !a.askedAt.IsZero() {
		term := time.Duration(lease.RemainingMs) * time.Millisecond
		margin := term / 10
		if margin > time.Second {
			margin = time.Second
		}
		if until := a.askedAt.Add(term - margin); until.After(a.confirmedUntil) {
			a.confirmedUntil = until
		}
		a.askedAt = time.Time{}
	}
	if lease.GetCancelRequested() {
		a.cancelRequested = true
		a.stop()
	}
}

// Worker runs handlers, by "handler version", for the tasks of some queues.
type Worker struct {
	address, name string
	queues        []string
	handlers      map[string]Handler
	versions      []*pb.HandlerVersion
	slots         uint32

	mu         sync.Mutex // of all below
	attempts   map[string]*Attempt
	unanswered map[string]*question
	outbox     chan *pb.WorkerRequest // of the open stream
	draining   bool
	renewEvery time.Duration
	started    int
	confirmed  int
}

type question struct {
	request *pb.WorkerRequest
	answer  chan *pb.CommandResult
}

func newWorker(address, name string, queues []string) *Worker {
	return &Worker{
		address: address, name: name, queues: queues, slots: 8, handlers: map[string]Handler{},
		attempts: map[string]*Attempt{}, unanswered: map[string]*question{}, renewEvery: time.Second,
	}
}

func (w *Worker) handle(name, version string, handler Handler) {
	w.handlers[name+" "+version] = handler
	w.versions = append(w.versions, &pb.HandlerVersion{Handler: name, HandlerVersion: version})
}

func (w *Worker) drained() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining && len(w.attempts) == 0
}

// run works until the worker is drained, over as many streams as it takes.
func (w *Worker) run() error {
	for delay := 50 * time.Millisecond; !w.drained(); {
		opened := time.Now()
		away, err := w.oneStream()
		switch status.Code(err) {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.FailedPrecondition:
			return err // refused for good
		}
		if err != nil && err != io.EOF {
			log.Printf("no stream: %v", err)
		}
		if time.Since(opened) > 5*time.Second {
			delay = 50 * time.Millisecond
		}
		wait := jitter(delay)
		if away > wait {
			wait = away
		}
		w.mu.Lock()
		w.outbox = nil
		for _, attempt := range w.attempts {
			attempt.askedAt = time.Time{} // nobody will answer
		}
		if len(w.attempts) > 0 && wait > w.renewEvery {
			wait = w.renewEvery // leases that are held outrank the wish to be left alone
		}
		w.mu.Unlock()
		if !w.drained() {
			time.Sleep(wait)
		}
		if delay *= 2; delay > 2*time.Second {
			delay = 2 * time.Second
		}
	}
	return nil
}

// oneStream is one stream from hello to its end. It returns for how long the server wants to be left alone.
func (w *Worker) oneStream() (away time.Duration, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opening := time.AfterFunc(10*time.Second, cancel)
	connection, err := grpc.DialContext(ctx, w.address, grpc.WithInsecure(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	stream, err := pb.NewWorkerServiceClient(connection).Worker(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.WorkerRequest{Message: &pb.WorkerRequest_Hello{Hello: w.hello()}}); err != nil {
		_, err = stream.Recv() // which tells why
		return 0, err
	}
	first, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	opening.Stop()
	welcome := first.GetWelcome()
	if !contains(welcome.GetFeatures(), safeRetry) { // fail closed [R1]
		return 0, status.Error(codes.FailedPrecondition, "the server does not know "+safeRetry)
	}

	outbox := make(chan *pb.WorkerRequest, 4096)
	w.mu.Lock()
	w.outbox = outbox
	if every := time.Duration(welcome.RenewEveryMs) * time.Millisecond; every > 20*time.Millisecond {
		w.renewEvery = every
	}
	renewEvery := w.renewEvery
	w.onLeases(welcome.Held)
	for _, question := range w.unanswered {
		w.send(question.request) // under the same message id [R4]
	}
	if w.draining {
		w.send(drainRequest())
	}
	w.renew()
	w.mu.Unlock()

	// One goroutine writes, one reads; this one keeps the time.
	go func() {
		for {
			select {
			case request := <-outbox:
				if stream.Send(request) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	frames, ended := make(chan *pb.WorkerResponse), make(chan error, 1)
	go func() {
		for {
			frame, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case frames <- frame:
			case <-ctx.Done():
				return
			}
		}
	}()
	renewals, pings, looks := time.NewTicker(renewEvery), time.NewTicker(pingEvery), time.NewTicker(20*time.Millisecond)
	defer renewals.Stop()
	defer pings.Stop()
	defer looks.Stop()
	var leave <-chan time.Time
	heard, sequence := time.Now(), uint64(0)
	for {
		select {
		case frame := <-frames:
			heard = time.Now()
			if goAway := frame.GetGoAway(); goAway != nil {
				away = time.Duration(goAway.ReconnectAfterMs) * time.Millisecond
				leave = time.After(away) // what is held goes on here while the stream lasts
			}
			w.mu.Lock()
			w.onFrame(frame)
			w.mu.Unlock()
		case err := <-ended:
			return away, err
		case <-renewals.C: // [R3]
			w.mu.Lock()
			w.renew()
			w.mu.Unlock()
		case <-pings.C:
			if time.Since(heard) > silenceMax {
				return away, errors.New("the server does not answer pings")
			}
			sequence++
			w.mu.Lock()
			w.send(&pb.WorkerRequest{Message: &pb.WorkerRequest_Ping{Ping: &pb.Ping{Sequence: sequence}}})
			w.mu.Unlock()
		case <-looks.C:
			if w.drained() {
				return away, nil
			}
		case <-leave:
			return away, nil
		}
	}
}

func (w *Worker) hello() *pb.Hello {
	w.mu.Lock()
	defer w.mu.Unlock()
	hello := &pb.Hello{
		WorkerName: w.name, QueueIds: w.queues, Handlers: w.versions, MaxInFlight: w.slots,
		Features: []string{safeRetry},
	}
	for _, attempt := range w.attempts {
		if attempt.started && !attempt.lost {
			attempt.ask()
			hello.Held = append(hello.Held, attempt.ref) // [R5]
		}
	}
	if w.draining {
		hello.MaxInFlight = 1
	}
	if held := uint32(len(hello.Held)); held > hello.MaxInFlight {
		hello.MaxInFlight = held
	}
	return hello
}

// send queues a message for the open stream. Without one, or with one that takes nothing, it is sent again later.
func (w *Worker) send(request *pb.WorkerRequest) {
	select {
	case w.outbox <- request:
	default:
	}
}

func (w *Worker) renew() {
	renew := &pb.Renew{}
	flush := func() {
		if len(renew.Leases) > 0 {
			w.send(&pb.WorkerRequest{Message: &pb.WorkerRequest_Renew{Renew: renew}})
			renew = &pb.Renew{}
		}
	}
	for _, attempt := range w.attempts {
		if attempt.started && !attempt.lost {
			attempt.ask()
			if renew.Leases = append(renew.Leases, attempt.ref); len(renew.Leases) == 1000 {
				flush()
			}
		}
	}
	flush()
}

func (w *Worker) onLeases(leases []*pb.RenewedLease) {
	for _, renewed := range leases {
		if attempt := w.attempts[renewed.GetAttempt().GetAttemptId()]; attempt != nil {
			attempt.learn(renewed.Lease)
		}
	}
}

func (w *Worker) onFrame(frame *pb.WorkerResponse) {
	switch message := frame.Message.(type) {
	case *pb.WorkerResponse_Dispatch:
		dispatch := message.Dispatch
		handler := w.handlers[dispatch.Handler+" "+dispatch.HandlerVersion]
		if handler == nil || w.attempts[dispatch.AttemptId] != nil {
			return
		}
		attempt := &Attempt{dispatch: dispatch, ref: &pb.AttemptRef{
			TaskId: dispatch.TaskId, AttemptId: dispatch.AttemptId, Epoch: dispatch.Epoch,
		}}
		limit := dispatch.AttemptTimeoutMs
		if dispatch.DeadlineMs < limit {
			limit = dispatch.DeadlineMs
		}
		attempt.ctx, attempt.stop =
			context.WithTimeout(context.Background(), time.Duration(limit)*time.Millisecond)
		w.attempts[dispatch.AttemptId] = attempt
		go w.attend(attempt, handler)
	case *pb.WorkerResponse_CommandResult:
		if question := w.unanswered[message.CommandResult.MessageId]; question != nil {
			select {
			case question.answer <- message.CommandResult:
			default: // answered already
			}
		}
	case *pb.WorkerResponse_Renewed:
		w.onLeases(message.Renewed.Leases)
	case *pb.WorkerResponse_Cancel:
		if attempt := w.attempts[message.Cancel.AttemptId]; attempt != nil {
			attempt.cancelRequested = true
			attempt.stop()
		}
	}
}

// attend is the life of an attempt: ask for its start, run it, report it until that is confirmed.
func (w *Worker) attend(attempt *Attempt, handler Handler) {
	ref := attempt.ref
	defer func() {
		w.mu.Lock()
		delete(w.attempts, ref.AttemptId)
		w.mu.Unlock()
		attempt.stop()
	}()
	w.mu.Lock()
	attempt.ask()
	w.mu.Unlock()
	id := newID()
	answer := w.command(id, &pb.WorkerRequest{Message: &pb.WorkerRequest_Start{Start: &pb.Start{
		MessageId: id, TaskId: ref.TaskId, AttemptId: ref.AttemptId, Epoch: ref.Epoch,
	}}})
	if code(answer.Status) != codes.OK {
		log.Printf("task %s: not started: %s", ref.TaskId, answer.Status.GetMessage())
		return // and the handler must not run [R1]
	}
	w.mu.Lock()
	attempt.started = true
	w.started++
	attempt.learn(answer.Lease)
	lost, canceled := attempt.lost, attempt.cancelRequested
	w.mu.Unlock()

	var finish *pb.Finish
	switch {
	case lost:
		finish = failed(&Failure{pb.Outcome_OUTCOME_FAILED, "NEVER_RAN", "the lease had ended before", true})
	case canceled:
		finish = failed(&Failure{pb.Outcome_OUTCOME_CANCELED, "CANCELED", "before the handler was called", false})
	default:
		finish = runHandler(attempt, handler)
	}
	for repeated, downgraded := false, false; ; {
		id := newID()
		finish.MessageId, finish.TaskId, finish.AttemptId, finish.Epoch = id, ref.TaskId, ref.AttemptId, ref.Epoch
		answer := w.command(id, &pb.WorkerRequest{Message: &pb.WorkerRequest_Finish{Finish: finish}})
		if code(answer.Status) == codes.OK {
			evidence := answer.GetReceipt().GetDisposition() == pb.Disposition_DISPOSITION_EVIDENCE
			if evidence && answer.GetLease().GetValid() && !repeated {
				repeated = true // it came before its start was known: once more, under a new id [R7]
				continue
			}
			w.mu.Lock()
			w.confirmed++
			w.mu.Unlock()
			return
		}
		log.Printf("task %s: report refused: %s", ref.TaskId, answer.Status.GetMessage())
		if code(answer.Status) == codes.NotFound || downgraded {
			return
		}
		downgraded = true // this report will never be taken: what happened is in doubt
		finish = failed(&Failure{pb.Outcome_OUTCOME_UNKNOWN, "REPORT_REFUSED", answer.Status.GetMessage(), false})
	}
}

func runHandler(attempt *Attempt, handler Handler) (finish *pb.Finish) {
	unknown := func(problem interface{}) *pb.Finish { // nobody knows what happened before it [R6]
		return failed(&Failure{pb.Outcome_OUTCOME_UNKNOWN, "HANDLER_ERROR", fmt.Sprint(problem), false})
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			finish = unknown(panicked)
		}
	}()
	result, err := handler(attempt.ctx, attempt.dispatch)
	var failure *Failure
	if errors.As(err, &failure) {
		return failed(failure)
	} else if err != nil {
		return unknown(err)
	}
	text, err := json.Marshal(result)
	if err != nil {
		return unknown(err)
	}
	return &pb.Finish{Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Result: string(text)}
}

// command sends one message, always the same, on this stream and the next ones, until it is decided [R4].
func (w *Worker) command(id string, request *pb.WorkerRequest) *pb.CommandResult {
	question := &question{request, make(chan *pb.CommandResult, 1)}
	for delay := 100 * time.Millisecond; ; {
		w.mu.Lock()
		w.unanswered[id] = question
		w.send(request)
		w.mu.Unlock()
		select {
		case answer := <-question.answer:
			w.mu.Lock()
			delete(w.unanswered, id)
			w.mu.Unlock()
			switch code(answer.Status) {
			case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition,
				codes.OutOfRange, codes.Unimplemented, codes.DataLoss:
				return answer
			}
			time.Sleep(jitter(delay))
			if delay *= 2; delay > 5*time.Second {
				delay = 5 * time.Second
			}
		case <-time.After(answerTimeout):
		}
	}
}

// drain takes no more work, finishes what there is, and tells how many attempts are left.
func (w *Worker) drain(limit time.Duration) (drained bool, running int) {
	w.mu.Lock()
	w.draining = true
	w.send(drainRequest())
	w.mu.Unlock()
	for until := time.Now().Add(limit); !w.drained() && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.attempts) == 0, len(w.attempts)
}

func drainRequest() *pb.WorkerRequest {
	return &pb.WorkerRequest{Message: &pb.WorkerRequest_Drain{Drain: &pb.Drain{}}}
}

func failed(failure *Failure) *pb.Finish {
	return &pb.Finish{
		Outcome: failure.Outcome, Retryable: failure.Retryable,
		Error: &pb.TaskError{Code: failure.Code, Message: failure.Message},
	}
}

func code(status *rpcstatus.Status) codes.Code { return codes.Code(status.GetCode()) }

func jitter(delay time.Duration) time.Duration {
	return delay/2 + time.Duration(mathrand.Int63n(int64(delay/2)+1))
}

func contains(all []string, one string) bool {
	for _, each := range all {
		if each == one {
			return true
		}
	}
	return false
}

// newID makes a random UUID.
func newID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
