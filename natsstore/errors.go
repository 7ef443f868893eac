package natsstore

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

var (
	errDiffers = errors.New("natsstore: an entry is not as it was, or is being written")
	errBusy    = fmt.Errorf("%w: natsstore: nothing was executed", driver.ErrNotReady)
	errLags    = errors.New("natsstore: a member lags")
	errMany    = errors.New("natsstore: too many entries for one answer")
	errNone    = errors.New("natsstore: no entry")
	errHoles   = errors.New("natsstore: a part of an answer is lost")
	errCut     = errors.New("natsstore: the connection was cut off")
	errBehind  = errors.New("natsstore: the watch is late by more than deletions are kept")
	errSilent  = errors.New("natsstore: no answer")
)

// meanings has the meaning of each error of JetStream for a transaction, by its code. After an error that is not
// listed the transaction may be executed at any later time. The places are in server of nats-server 2.15.
var meanings = map[int]error{
	// The leader compares before it proposes, also with transactions under way (jetstream_batching.go).
	10071: errDiffers, // wrong last sequence, with the sequence
	10164: errDiffers,

	// The leader refuses before it proposes (stream.go, jetstream_cluster.go), and may not do so later.
	10210: errBusy, // too many batches under way
	10167: errBusy, // too many requests
	10002: errBusy, // the limits of the account
	10023: errBusy, // the limits of the member
	10028: errBusy, // memory
	10047: errBusy, // storage

	// The same, and the same transaction is refused later, too.
	10174: casstore.ErrRefused, // no atomic batches
	10199: casstore.ErrRefused, // too many messages for a batch
	10166: casstore.ErrRefused, // no markers that end
	10165: casstore.ErrRefused,
	10054: casstore.ErrRefused, // too large
	10097: casstore.ErrRefused,
	10109: casstore.ErrRefused, // sealed

	// The stream is full, which the leader sees before it proposes, or a member could not write.
	10077: casstore.ErrSettled,
}

// explain says what an error means for a transaction.
func explain(code int, text string) error {
	err := fmt.Errorf("NATS: %s (%d)", text, code)
	if means := meanings[code]; means != nil {
		return fmt.Errorf("%w: %w", means, err)
	}
	return err
}

// acked reads the answer to a transaction: the sequence of its last message, or zero for the answer to the first of
// several.
func acked(m *nats.Msg) (uint64, error) {
	if code := m.Header.Get("Status"); code == "503" {
		return 0, fmt.Errorf("%w: no leader of the stream has it, or there is no bucket of this name: see natsstore.Create", errBusy)
	} else if code != "" && len(m.Data) == 0 {
		return 0, fmt.Errorf("NATS: %s %s", code, m.Header.Get("Description"))
	}
	if len(m.Data) == 0 {
		return 0, nil
	}
	var ack struct {
		Sequence uint64 `json:"seq"`
		Error    *struct {
			Code int    `json:"err_code"`
			Text string `json:"description"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
		return 0, fmt.Errorf("natsstore: an answer that is none: %w", err)
	case ack.Error != nil:
		return 0, explain(ack.Error.Code, ack.Error.Text)
	case ack.Sequence == 0:
		return 0, errors.New("natsstore: an answer without a sequence")
	}
	return ack.Sequence, nil
}
