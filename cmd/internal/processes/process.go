package processes

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one program with its arguments, through all its lives. Its methods are called from one goroutine, Said from
// any.
type Process struct {
	// Constant after creation.
	Name  string
	Line  []string    // the program and its arguments
	Ready string      // URL that answers 200 once it serves
	TLS   *tls.Config // for Ready; nil: the system's authorities
	// In is a command that runs another: in a network namespace, say.
	In []string
	// Env is added to the environment without settings of the product.
	Env []string
	// Out gets the process's output, besides Said; nil: Said alone keeps it.
	Out io.Writer

	cmd  *exec.Cmd
	done chan struct{}
	err  error // why it ended; good once done is closed
	said said
}

// said is the output of a process in its present life, up to a bound.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// saidMax bounds the output kept of a life; the rest is dropped.
const saidMax = 4 << 20

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if room := saidMax - s.text.Len(); room > 0 {
		s.text.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

// Said returns the output of the present life.
func (p *Process) Said() string {
	p.said.mu.Lock()
	defer p.said.mu.Unlock()
	return p.said.text.String()
}

// Launch starts it without waiting.
func (p *Process) Launch() error {
	line := append(slices.Clone(p.In), p.Line...)
	p.said.mu.Lock()
	p.said.text.Reset()
	p.said.mu.Unlock()
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Env = append(environ(), p.Env...)
	p.cmd.Stderr = &p.said
	if p.Out != nil {
		p.cmd.Stderr = io.MultiWriter(&p.said, p.Out)
	}
	p.cmd.SysProcAttr = ownGroup()
	if err := p.cmd.Start(); err != nil {
		return err
	}
	done, cmd := make(chan struct{}), p.cmd
	p.done = done
	go func() {
		p.err = cmd.Wait()
		close(done)
	}()
	return nil
}

// environ is the environment without the product's variables: a cluster gets all settings as arguments.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "SPILLWAY_") })
}

// Wait returns when it serves, has ended, or ctx is done.
func (p *Process) Wait(ctx context.Context) error {
	for {
		if p.answers(ctx) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w\n%s", p.Name, p.Ended(), p.Said())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.Name, ctx.Err(), p.Said())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *Process) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Ready, nil)
	if err != nil {
		return false
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: p.TLS}}
	answer, err := client.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// Ended is why it ended; good once Done is closed.
func (p *Process) Ended() error {
	if p.err == nil {
		return errors.New("exit code 0")
	}
	return p.err
}

// Start starts it and returns when it serves.
func (p *Process) Start(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Done is closed when it has ended; nil before its first life.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the process id of its present life; 0 if there is none.
func (p *Process) PID() int {
	if p.cmd == nil || p.cmd.Process == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Kill ends it as the kernel would: nothing is flushed, closed or printed. A process that has ended stays ended.
func (p *Process) Kill() {
	if p.done == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Terminate asks it to end, and returns at once.
func (p *Process) Terminate() error { return p.cmd.Process.Signal(syscall.SIGTERM) }

// Stop ends it as an operator would, and kills it when ctx is done first. It returns the error of its exit.
func (p *Process) Stop(ctx context.Context) error {
	if p.done == nil {
		return nil
	}
	if err := p.Terminate(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s did not end and was killed: %w", p.Name, ctx.Err())
	}
}

// Pause stops it where it stands, as a machine that is moved does; Resume lets it go on.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
