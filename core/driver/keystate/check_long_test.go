//go:build integration && long

package keystate

import (
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/internal/rediswire"
	"github.com/interlock-go/interlock/internal/redistest"
)

const fewCalls = 100_000

// mutations are mistakes that the check must find: each replaces a text in all scripts.
var mutations = []struct{ name, old, broken string }{
	{"one place too many", "n >= atmost", "n > atmost"},
	{"one place too few", "n >= atmost", "n + 1 >= atmost"},
	{"no barrier", "or b > now and not ahead(q, id)", ""},
	{"a barrier that lasts", "min(tonumber(left) or 0, longest)", "longest"},
	{"a barrier against those before the exclusive locker", "b > now and not ahead(q, id)", "b > now"},
	{"a barrier that lets all in the list pass", "return first and not find(',' .. sub(q, 1, first - 1), ',[^+-]') and first", "return first"},
	{"a stale entry blocks its own locker", "sub(q, 1, first - 1), ',[^+-]'", "sub(q, 1, first), ',[^+-]'"},
	{"a place is revived by enter", "if token and tonumber(ends) > now then", "if token then"},
	{"a place is revived by stay", "if not token or tonumber(ends) <= now then", "if not token then"},
	{"a place that has ended is released", "if not held[3] or tonumber(match(mine or '', '@(%d+)$') or 0) <= now then", "if not held[3] or not mine then"},
	{"places that have ended are counted", "if ends <= now then", "if ends <= now - 60 then"},
	{"live places are swept away", "if ends <= now then", "if ends <= now + 10 then"},
	{"the list is counted as a place", "(held[2] and 2 or 1)", "1"},
	{"the barrier is counted as a place", "(held[4] and 1 or 0)", "0"},
	{"the earliest end is not kept", "min(ends, earliest or ends)", "earliest or ends"},
	{"tokens are not reserved", "tokens == 1 and text or format('%.0f', token + tokens - 1)", "text"},
	{"no token is left to hand-offs", "token = (tonumber(last) or token) + spare + 1", "token = (tonumber(last) or token) + 1"},
	{"tokens are not reserved after the clock was passed", "call('SET', fence, format('%.0f', token + tokens - 1), 'PX', keep)", "call('SET', fence, text, 'PX', keep)"},
	{"the fence is lowered", "redis.pcall('SET', fence, last, 'PX', keep)", "last = nil"},
	{"exclusive beside a place", "if n == 0 then\n\t\t\t-- The", "if n <= 1 then\n\t\t\t-- The"},
	{"a place beside an exclusive holder", "local fresh = not m and call('EXISTS', lock) == 0", "local fresh = not m"},
	{"an exclusive grant forgets who waits", "uncalled(without(q, id))", "''"},
	{"a grant leaves its locker in the list", "left = left or without(q, id)", "left = left or q"},
	{"a locker is listed as what it was", "sub(q, 1, first - 1) .. sign .. name .. sub(q, last + 1)", "q"},
	{"the key is cut short by a short lease", "call('PEXPIRE', lock, lease + linger, 'GT')\nend", "call('PEXPIRE', lock, lease + linger)\nend"},
	{"the key ends with its last place", "redis.pcall('PEXPIRE', lock, lease + linger)", "redis.pcall('PEXPIRE', lock, lease)"},
	{"a renewal does not keep the key", "call('PEXPIRE', lock, lease + linger, 'GT')\n\t\tcall", "call"},
	{"a key without expiry", "if fresh and type(redis.pcall('PEXPIRE', lock, lease + linger)) ~= 'number' then", "if false then"},
	{"to ask again at the last end", "min(poll, call('PTTL', lock) - linger)", "call('PTTL', lock)"},
	{"nothing is announced while others have places", "if k > 0 then", "if k < 0 then"},
	{"no locker is called by a low number", "if n >= free and #called > 0 or", "if n >= free or"},
	{"too many are called", "if n >= free and #called > 0 or", "if"},
	{"a locker is called past a barrier", "or sign == '' and barrier > now then", "then"},
	{"a locker that was called loses its place at once", "\t\t\tstays[#stays + 1] = '-' .. id\n\t\telseif", "\t\telseif"},
	{"the key is left after the last release", "call('DEL', lock)\n\t\tq", "q"},
	{"a ticket may be taken twice", "call('DEL', lock)\n\tcall('HSET', lock, owner, text, unpack(q", "call('HSET', lock, owner, text, unpack(q"},
	{"the ticket of a permit may be taken twice", "call('HDEL', lock, from)\n", "\n"},
	{"a ticket is taken after its time", "if token and tonumber(ends) > clock() then", "if token then"},
	{"the ticket of a permit is taken for the lock", "if not field or place ~= not not m then", "if not field then"},
	{"no note of a ticket that was taken", "pcall_('SET', noted, '1', 'PX', format('%.0f', left + ARGV[8]))", ""},
	{"the note of a ticket that was taken ends with it", "left + ARGV[8]", "ARGV[8]"},
	{"a lock that is handed over forgets who waits", "unpack(q and {'q', q} or {})", "unpack({})"},
	{"a lock that is handed over keeps its lease", "if type(pcall_('PEXPIRE', lock, lease)) ~= 'number' then", "if type(pcall_('PEXPIRE', lock, left)) ~= 'number' then"},
	{"an earlier end is not announced", "if q and not place and lease < left then", "if false then"},
	{"a later end is announced", "if q and not place and lease < left then", "if q and not place then"},
	{"a token below the one that was reported", "if above > (spare and token - spare - 1 or token - 1) then", "if false then"},
	{"a second token for a ticket that is brought again", "if mine then\n\tmine", "if false then\n\tmine"},
	{"in short, too many have places", "call('HLEN', lock) - 1 < atmost", "call('HLEN', lock) - 1 <= atmost"},
	{"in short, a place past those who wait", "not held[1] and not held[2] and not held[4] and not (", "not held[1] and not held[4] and not ("},
	{"in short, a place beside an exclusive holder", "fresh and call('EXISTS', lock) == 1", "false"},
	{"in short, a place that has ended is released", "if time < held[3] * 1000 then", "if true then"},
	{"in short, a second token for the same place", "if not held[1] and not held[2] and not held[4] and not (", "if not held[2] and not held[4] and not ("},
	{"in short, the locker that leaves is not listed", "if #ARGV == 4 and ARGV[3] == '' then", "if #ARGV == 4 then"},
	{"in short, a release is not announced", "held[1] and held[3] and not held[2] and not held[4] then", "held[1] and held[3] and not held[4] then"},
	{"in short, the key is left after the last release", "call('DEL', lock) -- m alone is left", "call('EXISTS', lock)"},
	{"a kept lock is given to all", "if ms > 0 then\n\t\t\t\tlocal listed", "if false then\n\t\t\t\tlocal listed"},
	{"a place of a kept lock is given to all", "elseif ms > 0 then", "elseif false then"},
	{"a turn begins late", "ms = ms + patience", "ms = ms + 2 * patience"},
	{"a lock is kept for the first alone", "if n == 4 or letter == ''", "if n == 1 or letter == ''"},
	{"a lock is kept after the turns", "redis.pcall('PEXPIRE', lock, kept)", "redis.pcall('PEXPIRE', lock, kept + 100)"},
	{"lockers that were passed over keep their places", "behind = sub(q, after)", "behind = without(q, id)"},
	{"all who want places are called", "first and (atmost == 0 or select(2, gsub(sub(q, 1, first), ',', '')) < atmost)", "first"},
	{"a locker that declines keeps its turn", "if not ms or ms > 0 then", "if true then"},
	{"a locker that declines is called again", "ms, behind = opening(lock, q, id, r, o, '')", "ms, behind = 0, q"},
	{"the newest caller is listed at the end", "new = others == '' and id or id .. ',' .. others", "new = others == '' and id or others .. ',' .. id"},
	{"the newest caller waits for a turn", "ms, behind = 0, others", "ms = ms"},
	{"an older caller takes the lock", "if number < last then", "if false then"},
	{"an earlier caller of a locker takes the number of a later one", "elseif order < before then", "elseif false then"},
	{"an earlier caller of a locker is the newest", "not before or order > before", "true"},
	{"a caller gets two numbers", "not before or order > before", "not before or order >= before"},
	{"a caller that repeats its request after another came has come again", "write(keep, 'n', text, by,", "call('DEL', line)\n\t\t\twrite(keep, 'n', text, by,"},
	{"numbers repeat", "max(last + 1, time)", "last + 0"},
	{"the newest caller takes a lock that is held", "elseif not m then\n\treturn refused(holders(lock, 1), call('PTTL', lock))", "elseif not m then\n\tcall('DEL', lock)\n\treturn granted(others)"},
	{"the newest caller takes the lock beside places", "if n == 0 then\n\tif owner == ''", "if n <= 1 then\n\tif owner == ''"},
	{"a lock that is kept has an owner", "call('HMGET', lock, 'r')[1] and 0 or", ""},
	{"a locker that wants a place is offered the lock", "'^([^,~+]+)~%u", "'^([^,~]+)~%u"},
	{"a late request takes an offer back", "if o and o == id .. ':' .. named then", "if o and match(o, '^(.*):') == id then"},
	{"an offer does not outlast the patience", "patience = math.max(patience, 3000)", "patience = patience"},
	{"a locker that declines ends its offer", "if o and match(o, '^(.*):') == id then", "if false then"},
	{"an offer is no owner", "if held[3] == owner then", "if false then"},
	{"the only waiter is forgotten", "write(alone, 'w', bare(id))", "write(5, 'w', bare(id))"},
	{"a caller that must not wait keeps places from others", "reply[3] == 1 and til", "til"},
	{"the locker that is offered the lock is called as well", "if id ~= offered then", "if true then"},
	{"one locker fewer is called", "if n == most then", "if n == most - 1 then"},
	{"a call names the other lockers", "sign .. '.' .. patience", "sign .. id .. patience"},
	{"a locker that is not called asks late", "max(1500, floor(#q / 4))", "10000"},
	{"a locker that is called asks soon", "min(ms, 10000)", "min(ms, 1500)"},
	{"a call is announced as it is kept", "q = uncalled(q)", "q = q"},
}

func TestTheCheckOfTheScriptsFindsMistakes(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t, patiently)
	for i, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			broken, applied := rediswire.Sources(), false
			for name, source := range broken {
				broken[name] = strings.ReplaceAll(source, m.old, m.broken)
				applied = applied || broken[name] != source
			}
			if !applied {
				t.Fatal("no script has the text")
			}
			began := time.Now()
			err := explore(t.Context(), rdb, broken, 60_000, uint64(1000*i)+uint64(began.UnixNano()))
			if err == nil {
				t.Fatal("not found")
			}
			t.Logf("found in %v: %v", time.Since(began), err)
		})
	}
}
