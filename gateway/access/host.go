package access

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// LocalOnly protects pages that need no credentials from other pages in the operator's browser. A page can have its own
// name resolve to 127.0.0.1 and then read from here with its visitor's rights (DNS rebinding). So the Host header must be
// an address, localhost or one of names; such a page's name is none of these. A form on a page can send requests without
// reading answers: a request that changes something must come from no page, or from this process (Origin and
// Sec-Fetch-Site).
func LocalOnly(names []string, next http.Handler) http.Handler {
	allowed := map[string]bool{"localhost": true}
	for _, n := range names {
		allowed[strings.ToLower(strings.TrimSuffix(n, "."))] = true
	}
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed["*"] && !localHost(r.Host, allowed) {
			http.Error(w, fmt.Sprintf("The host %.80q is not one of this listener's: call it by address, or list the name in admin.hosts.", r.Host), http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
			http.Error(w, "Pages of other origins are not served here.", http.StatusForbidden)
			return
		}
		if err := cross.Check(r); err != nil {
			http.Error(w, "Pages of other origins are not served here.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// localHost reports whether a Host header names an address, localhost, or a name that is allowed.
func localHost(host string, allowed map[string]bool) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if allowed[name] || strings.HasSuffix(name, ".localhost") {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil
}
