package s3

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Settings say how a bucket is reached. They marshal to JSON.
type Settings struct {
	// Endpoint is the URL of the store. Default https://s3.amazonaws.com.
	Endpoint string `json:"endpoint,omitempty"`
	// Region of the bucket. Default: the store is asked.
	Region string `json:"region,omitempty"`
	// VirtualHost puts the bucket into the host name, as Amazon does. Default: only where the endpoint is Amazon's.
	VirtualHost bool `json:"virtual_host,omitempty"`
	// AccessKey, SecretKey and SessionToken sign requests. Default: the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
	// AWS_SESSION_TOKEN of this process, then its file of AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials), then the role of its machine,
	// container or service account.
	AccessKey    string `json:"access_key,omitempty"`
	SecretKey    string `json:"secret_key,omitempty"`
	SessionToken string `json:"session_token,omitempty"`
	// CA holds certificates of authorities in PEM form, beside those of the system.
	CA string `json:"ca,omitempty"`
}

const defaultEndpoint = "https://s3.amazonaws.com"

// Scheme begins the URL of a bucket.
const Scheme = "s3://"

// Local adds the credentials of this process to settings that have none: those of a file and profile if either is given, else of
// the environment, else of the default file. Without any the settings stay as they are. Errors: Invalid (a given file has none).
func (s Settings) Local(file, profile string) (Settings, error) {
	if s.AccessKey != "" {
		return s, nil
	}
	fromFile := &credentials.FileAWSCredentials{Filename: file, Profile: profile}
	chain := []credentials.Provider{&credentials.EnvAWS{}, fromFile}
	if file != "" {
		chain = []credentials.Provider{fromFile}
	}
	found, err := credentials.NewChainCredentials(chain).GetWithContext(nil)
	if err == nil {
		s.AccessKey, s.SecretKey, s.SessionToken = found.AccessKeyID, found.SecretAccessKey, found.SessionToken
	}
	if file != "" && s.AccessKey == "" {
		return s, fault.Errorf(fault.Invalid, "the credentials file %s has no aws_access_key_id and aws_secret_access_key of profile %q", file, cmp.Or(profile, "default"))
	}
	return s, nil
}

func (s Settings) credentials() *credentials.Credentials {
	if s.AccessKey != "" {
		return credentials.NewStaticV4(s.AccessKey, s.SecretKey, s.SessionToken)
	}
	return credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}})
}

// bucketOf splits s3://bucket/prefix. Errors: Invalid.
func bucketOf(at string) (bucket, prefix string, err error) {
	rest, ok := strings.CutPrefix(at, Scheme)
	bucket, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if !ok || bucket == "" || strings.ContainsAny(rest, "?#") || strings.Contains("/"+prefix+"/", "/../") || strings.Contains(prefix, "//") {
		return "", "", fault.Errorf(fault.Invalid, "%q is not of the form s3://BUCKET or s3://BUCKET/PREFIX", at)
	}
	if err := s3utils.CheckValidBucketName(bucket); err != nil {
		return "", "", fault.Wrap(err, fault.Invalid, "%s", at)
	}
	return bucket, prefix, nil
}

// Open makes a Bucket of s3://bucket/prefix, and asks the store nothing yet. Errors: Invalid.
func Open(at string, s Settings) (*Bucket, error) { return open(at, s, stallMax) }

func open(at string, s Settings, stall time.Duration) (*Bucket, error) {
	bucket, prefix, err := bucketOf(at)
	if err != nil {
		return nil, err
	}
	endpoint := s.Endpoint
	if endpoint == "" {
		endpoint = defaultEndpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fault.Errorf(fault.Invalid, "the endpoint %q is not of the form https://HOST or http://HOST:PORT", endpoint)
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		return nil, fault.Errorf(fault.Invalid, "the access key and the secret key go together")
	}
	transport, err := s.transport(u.Scheme == "https", stall)
	if err != nil {
		return nil, err
	}
	o := &minio.Options{Creds: s.credentials(), Secure: u.Scheme == "https", Region: s.Region, Transport: transport, MaxRetries: tries}
	if s.VirtualHost {
		o.BucketLookup = minio.BucketLookupDNS
	}
	client, err := minio.New(u.Host, o)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the endpoint %q", endpoint)
	}
	client.SetAppInfo("spillway", "1")
	return &Bucket{client: client, bucket: bucket, prefix: prefix}, nil
}

func (s Settings) transport(secure bool, stall time.Duration) (*http.Transport, error) {
	t, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "certificates of the system")
	}
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stalling{c, stall}, nil
	}
	if s.CA == "" {
		return t, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM([]byte(s.CA)) {
		return nil, fault.Errorf(fault.Invalid, "there is no certificate in PEM form among the authorities for the bucket")
	}
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return t, nil
}

// stallMax is how long a connection may pass no byte in either direction. It is more than a store has for its answer to a request (ResponseHeaderTimeout).
const stallMax = 2 * time.Minute

// stalling is a connection that fails when it passes no byte for a while.
type stalling struct {
	net.Conn
	most time.Duration
}

// progress begins the time anew, of reads and writes under way, too: a request that is being sent is progress, though its answer does not come yet.
func (c *stalling) progress() error { return c.SetDeadline(time.Now().Add(c.most)) }

// Read implements net.Conn.
func (c *stalling) Read(p []byte) (int, error) {
	if err := c.progress(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write implements net.Conn, in pieces of which each has the time.
func (c *stalling) Write(p []byte) (sent int, err error) {
	const piece = 64 << 10
	for {
		if err := c.progress(); err != nil || sent == len(p) {
			return sent, err
		}
		n, err := c.Conn.Write(p[sent:min(len(p), sent+piece)])
		if sent += n; err != nil {
			return sent, err
		}
	}
}
