package backups

import (
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/s3"
)

// Bucket says how a bucket with backups is reached, in the variables of Amazon's own tools. Keys come from the environment or
// from a credentials file, since other users of a host can read the flags of its processes.
type Bucket struct {
	Endpoint        string `name:"endpoint" help:"URL of a store that speaks S3's protocol (default: Amazon)." placeholder:"URL" env:"AWS_ENDPOINT_URL_S3,AWS_ENDPOINT_URL"`
	Region          string `name:"region" help:"Region of the bucket (default: the store is asked)." env:"AWS_REGION,AWS_DEFAULT_REGION"`
	VirtualHost     bool   `name:"virtual-host" help:"Put the bucket into the host name of another store than Amazon, as Amazon does."`
	CredentialsFile string `name:"credentials-file" help:"File with keys (default: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, then ~/.aws/credentials, then what the process has)." placeholder:"FILE" type:"path"`
	Profile         string `name:"profile" help:"Profile in it." env:"AWS_PROFILE"`
	CAFile          string `name:"ca-file" help:"File with authorities of the store's certificate (default: those of the system)." placeholder:"FILE" type:"path" env:"AWS_CA_BUNDLE"`
}

func isBucket(at string) bool { return strings.HasPrefix(at, s3.Scheme) }

// settings collects the flags and the credentials of this process. Errors: Invalid.
func (f *Bucket) settings() (s3.Settings, error) {
	set := s3.Settings{Endpoint: f.Endpoint, Region: f.Region, VirtualHost: f.VirtualHost}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return set, fault.Wrap(err, fault.Invalid, "--s3-ca-file")
		}
		set.CA = string(pem)
	}
	return set.Local(f.CredentialsFile, f.Profile)
}

// Place is a directory, or the bucket of s3://bucket/prefix. Errors: Invalid.
func (f *Bucket) Place(at string) (backup.Place, error) {
	if !isBucket(at) {
		dir, err := directory(at)
		return backup.Dir{FS: vfs.Default, Path: dir}, err
	}
	set, err := f.settings()
	if err != nil {
		return nil, err
	}
	return s3.Open(at, set)
}

// ordered is a place in an order for the process at a URL. Keys leave this host only over TLS. Errors: Invalid.
func (f *Bucket) ordered(at, process string) (string, *s3.Settings, error) {
	if !isBucket(at) {
		dir, err := directory(at)
		return dir, nil, err
	}
	set, err := f.settings()
	if err != nil {
		return at, nil, err
	}
	u, err := url.Parse(process)
	if err == nil && set.SecretKey != "" && u.Scheme != "https" && !isLoopbackHost(u.Hostname()) {
		return at, nil, fault.Errorf(fault.Invalid, "the credentials for the bucket would cross the network in the clear to %s: use https, or give them to the process in its environment and run this command without them", process)
	}
	return at, &set, nil
}

// directory is the absolute path of a place that is no bucket. A place without a name comes of a script's variable that is not set, and is not the working directory. Errors: Invalid.
func directory(at string) (string, error) {
	if at == "" {
		return "", fault.Errorf(fault.Invalid, "the place of the backups has no name: give a directory or s3://BUCKET/PREFIX")
	}
	return kong.ExpandPath(at), nil
}

// isLoopbackHost reports whether a host of a URL is this machine.
func isLoopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
