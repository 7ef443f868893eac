package watermilllock

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// produced is how a message that a handler produced is stored.
type produced struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload"`
}

// marshal encodes a message that is consumed as its payload, and messages that were
// produced as JSON.
func marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *message.Message:
		return v.Payload, nil
	case message.Messages:
		all := make([]produced, 0, len(v))
		for _, m := range v {
			if m == nil {
				return nil, fmt.Errorf("watermilllock: the handler produced a message that is nil")
			}
			all = append(all, produced{m.UUID, m.Metadata, m.Payload})
		}
		return json.Marshal(all)
	}
	return nil, fmt.Errorf("watermilllock: a value of type %T", v)
}

// unmarshal decodes messages that were produced. Empty data means no messages: an operator
// resolves a message with empty data.
func unmarshal(data []byte, v any) error {
	messages, ok := v.(*message.Messages)
	if !ok {
		return fmt.Errorf("watermilllock: a value of type %T", v)
	}
	if len(data) == 0 {
		return nil
	}
	var all []produced
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	for _, p := range all {
		m := message.NewMessage(p.UUID, p.Payload)
		for key, value := range p.Metadata {
			m.Metadata.Set(key, value)
		}
		*messages = append(*messages, m)
	}
	return nil
}
