package access

import (
	"encoding/base64"
	"net"
	"net/netip"
	"strings"
)

// Credentials are the parts of a request that identify its sender.
type Credentials struct {
	// Authorization are all values of that header.
	Authorization []string
	// Users and Passwords are all values of Influx v1's parameters u and p, where a route accepts these. A header outranks both.
	Users, Passwords []string
	// Remote gives the sender's address, as host:port; failed attempts are counted by address.
	Remote func() string
}

// claim is the content of credentials: a token, or a user with a password that may be a token too.
type claim struct {
	token, user, password string
}

// claim reads the credentials. Tokens come as "Bearer t", as "Token t" from Influx v2 clients, and, for clients that can
// send nothing else, as the password of any user by Basic, by "Token user:password" and by u and p.
func (c Credentials) claim() (claim, *Refusal) {
	switch len(c.Authorization) {
	case 0:
		user, one := only(c.Users)
		password, alone := only(c.Passwords)
		switch {
		case !one || !alone:
			return claim{}, refuse("malformed")
		case user == "" && password == "":
			return claim{}, refuse("missing")
		}
		return claim{user: user, password: password}, nil
	case 1:
		return parseAuthorization(c.Authorization[0])
	}
	return claim{}, refuse("malformed") // servers in front may look at another one than we do
}

// only gives the value that all values of a parameter have, "" for none; false: they differ.
func only(values []string) (value string, ok bool) {
	for i, v := range values {
		if i > 0 && v != value {
			return "", false
		}
		value = v
	}
	return value, true
}

func parseAuthorization(header string) (claim, *Refusal) {
	scheme, rest, ok := strings.Cut(header, " ")
	rest = strings.TrimSpace(rest)
	if !ok || rest == "" {
		return claim{}, refuse("malformed")
	}
	switch strings.ToLower(scheme) {
	case "bearer":
		return claim{token: rest}, nil
	case "token":
		cl := claim{token: rest}
		cl.user, cl.password, _ = strings.Cut(rest, ":")
		if cl.password == "" {
			cl.user = ""
		}
		return cl, nil
	case "basic":
		text, err := base64.StdEncoding.DecodeString(rest)
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok {
			return claim{}, refuse("malformed")
		}
		return claim{user: user, password: password}, nil
	}
	return claim{}, refuse("malformed")
}

// texts of refusals, by their reasons: they help only a person with the right secret.
var texts = map[string]string{
	"missing":   "this server asks for a token or a password: send Authorization: Bearer, Token or Basic",
	"malformed": "the credentials cannot be read: send one header Authorization: Bearer, Token or Basic, or u and p once",
	"unknown":   "the token or password is not known here",
	"expired":   "the token has expired",
	"throttled": "too many failed attempts from this address",
	"rate":      "too many requests",
}

func refuse(reason string) *Refusal {
	status := 401
	if reason == "throttled" || reason == "rate" {
		status = 429
	}
	return &Refusal{Status: status, Reason: reason, Text: texts[reason]}
}

// addressOf is the part of an address that one sender does not change at will: an IPv4 address, or an IPv6 network.
func addressOf(remote string) netip.Prefix {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{} // a socket of another family: they count as one sender
	}
	addr = addr.Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits)
	return p
}
