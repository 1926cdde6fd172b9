package access

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Bounds on a tokens file.
const (
	tokensBytesMax = 4 << 20
	tokensMax      = 10_000
	scopesMax      = 16  // of one token
	patternsMax    = 256 // of one scope
	nameBytesMax   = 64
	patternStars   = 4 // in one pattern: each multiplies the work of a match
)

// Token is one entry of a tokens file.
type Token struct {
	// Name is shown in logs instead of the token.
	Name string `yaml:"name"`
	// SHA256 of the token, in hexadecimal. The token has enough entropy that no slow hash is needed.
	SHA256 string  `yaml:"sha256"`
	Scopes []Scope `yaml:"scopes"`
	// Expires is when the token stops being valid; zero: never.
	Expires time.Time `yaml:"expires,omitempty"`
}

// Scope gives a token verbs on tables.
type Scope struct {
	// Tables are names, or patterns in which * stands for any text; "*" alone is every table.
	Tables []string `yaml:"tables,omitempty,flow"`
	// May lists read, write, admin (which includes both) and metrics.
	May []string `yaml:"may,flow"`
}

// digest is the SHA-256 of a token.
type digest [sha256.Size]byte

// tokens are those of a file, by their digests.
type tokens map[digest]*Identity

// find gives the identity of a token. The map is searched by digest, which no sender can choose, and the digests are also
// compared in constant time.
func (ts tokens) find(token string) *Identity {
	if len(ts) == 0 || token == "" {
		return nil
	}
	d := digest(sha256.Sum256([]byte(token)))
	id := ts[d]
	if id == nil || subtle.ConstantTimeCompare(id.digest[:], d[:]) != 1 {
		return nil
	}
	return id
}

// parseTokens reads a tokens file. The error is Invalid and names every mistake, and never a secret.
func parseTokens(text []byte) (tokens, error) {
	if len(text) > tokensBytesMax {
		return nil, fault.Errorf(fault.Invalid, "%d bytes, at most %d are read", len(text), tokensBytesMax)
	}
	var file struct {
		Tokens *[]Token `yaml:"tokens"`
	}
	if err := setting.DecodeYAML(text, &file); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "not a list of tokens")
	}
	if file.Tokens == nil {
		return nil, fault.Errorf(fault.Invalid, "no key tokens: write `tokens: []` to refuse all clients")
	}
	if n := len(*file.Tokens); n > tokensMax {
		return nil, fault.Errorf(fault.Invalid, "%d tokens, at most %d are taken", n, tokensMax)
	}
	out := tokens{}
	names := map[string]bool{}
	var errs []error
	for i, t := range *file.Tokens {
		id, err := t.identity()
		switch {
		case err != nil:
		case names[t.Name]:
			err = fmt.Errorf("the name is taken by a token before it")
		case out[id.digest] != nil:
			err = fmt.Errorf("its sha256 is that of token %q: give one token several scopes", out[id.digest].Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("token %d (%.64q): %w", i+1, t.Name, err))
			continue
		}
		names[t.Name], out[id.digest] = true, id
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "tokens")
	}
	return out, nil
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@/-]*$`)

// identity checks an entry. The error names every mistake.
func (t *Token) identity() (*Identity, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(t.Name) > nameBytesMax || !goodName.MatchString(t.Name) {
		bad("name: want 1 to %d of letters, digits and _.@/-, beginning with a letter or digit", nameBytesMax)
	}
	id := &Identity{Name: t.Name, expires: t.Expires}
	sum, err := hex.DecodeString(t.SHA256)
	if err != nil || len(sum) != sha256.Size {
		bad("sha256: want 64 hexadecimal digits, as `spillway token create` prints them")
	} else {
		id.digest = digest(sum)
		if id.digest == sha256.Sum256(nil) {
			bad("sha256: that is the digest of an empty token")
		}
	}
	if len(t.Scopes) == 0 || len(t.Scopes) > scopesMax {
		bad("scopes: want 1 to %d, each with tables and may", scopesMax)
	}
	for i := range t.Scopes {
		s, err := t.Scopes[i].scope()
		if err != nil {
			bad("scope %d: %w", i+1, err)
			continue
		}
		id.scopes = append(id.scopes, s)
	}
	return id, errors.Join(errs...)
}

func (s *Scope) scope() (out scope, err error) {
	for _, word := range s.May {
		v, ok := verbNames[word]
		if !ok {
			return out, fmt.Errorf("may: %q is none of read, write, admin, metrics", word)
		}
		out.may |= v
	}
	if out.may == 0 {
		return out, errors.New("may: want at least one of read, write, admin, metrics")
	}
	if out.may == Metrics && len(s.Tables) == 0 {
		out.tables = []string{anyTable} // metrics are of no table
		return out, nil
	}
	if len(s.Tables) == 0 || len(s.Tables) > patternsMax {
		return out, fmt.Errorf(`tables: want 1 to %d names or patterns; "*" is every table`, patternsMax)
	}
	for _, p := range s.Tables {
		if err := checkPattern(p); err != nil {
			return out, fmt.Errorf("tables: %w", err)
		}
	}
	out.tables = slices.Clone(s.Tables)
	return out, nil
}

// checkPattern checks a table's name that may contain stars.
func checkPattern(p string) error {
	if p == anyTable {
		return nil
	}
	if strings.Count(p, anyTable) > patternStars {
		return fmt.Errorf("%q has more than %d stars", p, patternStars)
	}
	if err := tablename.Check(strings.ReplaceAll(p, anyTable, "x")); err != nil {
		return fmt.Errorf("%q: %w", p, err)
	}
	_, err := path.Match(p, "x")
	return err
}

// tokenPrefix lets people and secret scanners recognize a token.
const tokenPrefix = "spwt_"

// NewToken makes a token of 256 random bits.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// Entry gives the lines of a tokens file for a token. The error is Invalid and names every mistake.
func Entry(token string, t Token) (string, error) {
	sum := sha256.Sum256([]byte(token))
	t.SHA256 = hex.EncodeToString(sum[:])
	if _, err := t.identity(); err != nil {
		return "", fault.Wrap(err, fault.Invalid, "token")
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode([]Token{t}); err != nil {
		fault.Bug("an entry does not encode: %v", err)
	}
	return out.String(), nil
}
