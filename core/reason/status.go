package reason

import (
	"maps"
	"slices"
)

// The codes of gRPC (google.rpc.Code) that refusals have.
const (
	canceled           = 1
	invalidArgument    = 3
	deadlineExceeded   = 4
	resourceExhausted  = 8
	failedPrecondition = 9
	aborted            = 10
	internal           = 13
	unavailable        = 14
	dataLoss           = 15
)

// status is the status of a refusal in each protocol.
type status struct {
	http int
	grpc uint32
}

// statuses is the one table of statuses.
var statuses = map[Reason]status{
	BadKey:         {400, invalidArgument},
	BodyTooLarge:   {413, resourceExhausted},
	BodyIncomplete: {400, invalidArgument},
	BodyTimeout:    {408, deadlineExceeded},
	Held:           {423, aborted},
	Full:           {429, resourceExhausted},
	QueueFull:      {423, aborted},
	Superseded:     {409, aborted},
	HeldByCaller:   {409, aborted},
	StaleToken:     {412, failedPrecondition},
	TokenMissing:   {428, failedPrecondition},
	TokenMalformed: {400, invalidArgument},
	PrincipalLimit: {429, resourceExhausted},
	Deadline:       {423, deadlineExceeded},
	Canceled:       {0, canceled},
	Unavailable:    {503, unavailable},
	NotReplicated:  {503, unavailable},
	KeyOccupied:    {500, internal},
	Closing:        {503, unavailable},
	Lost:           {500, aborted},
	MaxHold:        {500, aborted},
	Misconfigured:  {500, internal},
	Internal:       {500, internal},

	// Of idempotent endpoints (the IETF draft "The Idempotency-Key HTTP Header
	// Field", 2.6 and 2.7).
	KeyMissing:          {400, invalidArgument},
	KeyMalformed:        {400, invalidArgument},
	NoPrincipal:         {400, invalidArgument},
	ContentType:         {415, invalidArgument},
	KeyReused:           {422, failedPrecondition},
	InFlight:            {409, aborted},
	OutcomeUnknown:      {409, dataLoss},
	ResponseUnavailable: {409, dataLoss},
	ResponseTooLarge:    {500, internal},
	RolledBack:          {503, unavailable},
	NotAcceptable:       {406, failedPrecondition},
	KeyExpired:          {410, failedPrecondition},
	NoRecord:            {503, unavailable},
}

// HTTP returns the status of HTTP of a refusal for this reason. It is 0 for [Canceled]: no client
// is left to receive an answer. A reason that this package does not have is an [Internal] error: an
// empty answer would look like a success. A [Profile] can change the status: adapters for HTTP call
// Refusal.HTTP of package core.
func (r Reason) HTTP() int { return r.status().http }

// GRPC returns the number of the code of gRPC (google.rpc.Code) of a refusal for this reason. A
// reason that this package does not have is an [Internal] error.
func (r Reason) GRPC() uint32 { return r.status().grpc }

func (r Reason) status() status {
	if s, ok := statuses[r]; ok {
		return s
	}
	return statuses[Internal]
}

// All returns the reasons, sorted.
func All() []Reason { return slices.Sorted(maps.Keys(statuses)) }
