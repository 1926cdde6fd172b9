package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

const (
	// verdictsMax bounds the cached good and bad passwords, each.
	verdictsMax = 1024
	// hashersWaiting bounds the requests that wait for their password to be hashed, one at a time: unknown senders must not
	// use more than one core from the verified ones.
	hashersWaiting = 32
	// costMax bounds bcrypt's cost in a file. 14 costs about a second.
	costMax = 14
)

// passwords caches which passwords were good, so that bcrypt is paid once and not per request. It keeps digests under a key
// of this process, no passwords. Good and bad ones are apart: guesses do not push good ones out.
type passwords struct {
	key   [sha256.Size]byte
	hash  chan struct{} // holds one: the right to hash
	queue chan struct{} // holds the requests that hash or wait

	mu sync.RWMutex
	// guarded by mu
	good, bad map[digest]struct{}
}

func newPasswords() *passwords {
	p := &passwords{
		hash: make(chan struct{}, 1), queue: make(chan struct{}, 1+hashersWaiting),
		good: map[digest]struct{}{}, bad: map[digest]struct{}{},
	}
	_, _ = rand.Read(p.key[:]) // never fails
	return p
}

// digest stands for a user, the hash in the file and the password that was sent. A changed file changes it.
func (p *passwords) digest(user, hash, password string) digest {
	b := make([]byte, 0, 256)
	b = append(b, p.key[:]...)
	for _, s := range [...]string{user, hash, password} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return sha256.Sum256(b)
}

// known returns the cached result for a password.
func (p *passwords) known(d digest) (good, known bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if _, good = p.good[d]; good {
		return true, true
	}
	_, bad := p.bad[d]
	return false, bad
}

// check hashes a password and caches the verdict, which is never good if the user does not exist. full means that too many
// wait already.
func (p *passwords) check(d digest, hash, password string, exists bool) (good, full bool) {
	select {
	case p.queue <- struct{}{}:
		defer func() { <-p.queue }()
	default:
		return false, true
	}
	p.hash <- struct{}{}
	defer func() { <-p.hash }()
	if good, known := p.known(d); known {
		return good, false // another request sent the same meanwhile
	}
	good = bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil && exists
	p.remember(d, good)
	return good, false
}

func (p *passwords) remember(d digest, good bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.bad
	if good {
		m = p.good
	}
	if len(m) >= verdictsMax {
		for old := range m { // any entry
			delete(m, old)
			break
		}
	}
	m[d] = struct{}{}
}
