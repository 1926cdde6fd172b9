package credentials

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/common/model"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Token makes tokens for clients, and checks the files that let them in.
type Token struct {
	Create tokenCreateCmd `cmd:"" help:"Make a token, and the entry for --tokens.file that lets it in."`
	Check  tokenCheckCmd  `cmd:"" help:"Read the files of --tokens.file and --web.config.file as a start does, and say what is wrong with them."`
}

type tokenCreateCmd struct {
	Name    string   `name:"name" required:"" help:"What logs call the token."`
	Tables  []string `name:"table" help:"Tables that it is for; * stands for any text, and alone for every table."`
	May     []string `name:"may" required:"" help:"read, write, admin (which includes both) and metrics."`
	Expires string   `name:"expires" help:"When it ends: 90d, or 2027-01-31 (default never)."`
	Output  string   `name:"output" short:"o" help:"text or json." enum:"text,json" default:"text"`
}

// Run prints a token, which is stored nowhere, and its entry.
func (t *tokenCreateCmd) Run() error {
	expires, err := expiry(t.Expires, time.Now())
	if err != nil {
		return err
	}
	token := access.NewToken()
	entry, err := access.Entry(token, access.Token{Name: t.Name, Scopes: []access.Scope{{Tables: t.Tables, May: t.May}}, Expires: expires})
	if err != nil {
		return err
	}
	return t.print(os.Stdout, token, entry)
}

func (t *tokenCreateCmd) print(w io.Writer, token, entry string) error {
	if t.Output == "json" {
		return json.NewEncoder(w).Encode(map[string]string{"token": token, "entry": entry})
	}
	_, err := fmt.Fprintf(w, "The token, shown only now; it goes to the client:\n\n%s\n\nIts entry, below the key tokens: of --tokens.file:\n\n%s", token, entry)
	return err
}

// expiry parses a span from now, or a day: the token ends at its beginning (UTC).
func expiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		return at, nil
	}
	d, err := model.ParseDuration(text)
	if err != nil {
		return time.Time{}, fault.Errorf(fault.Invalid, "--expires %q is neither a span like 90d nor a day like 2027-01-31", text)
	}
	return now.UTC().Add(time.Duration(d)).Truncate(time.Second), nil
}

type tokenCheckCmd struct {
	WebConfigFile string `name:"web.config.file" help:"File with TLS, users and headers." type:"path"`
	TokensFile    string `name:"tokens.file" help:"File with tokens." type:"path"`
}

// Run reads the files.
func (t *tokenCheckCmd) Run() error {
	err := access.Check(access.Settings{WebFile: t.WebConfigFile, TokensFile: t.TokensFile})
	if err == nil {
		fmt.Println("The files are good.")
	}
	return err
}
