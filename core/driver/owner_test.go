package driver_test

import (
	"testing"

	"github.com/interlock-go/interlock/core/driver"
)

func TestAnAttentiveOwnerIsKnownByItsName(t *testing.T) {
	if id, ok := driver.IsAttentive(driver.Attentive("locker:17")); id != "locker" || !ok {
		t.Errorf("the owner is of %q, attentive %v", id, ok)
	}
	for _, owner := range []string{"", "!", ":!", ":1!", "locker!", "locker:17", "locker:17! "} {
		if id, ok := driver.IsAttentive(owner); id != "" || ok {
			t.Errorf("%q is taken for an attentive owner of %q", owner, id)
		}
	}
}
