/**
 * The reference: what a lock is, without Redis, without time and without processes. One instance is one lock key.
 * Tokens are numbered 1, 2, 3 … in the order of the grants; places in line by arrival.
 */

/** A shared lock is a permit of one of so many. */
export const SHARED = 1_000_000;

/** Who is told of a grant: a process that listens and claims, one that is frozen (it hears, and does nothing), one that is dead. */
export type Channel = 'a' | 'b' | 'c' | 'frozen' | 'dead';
export const isLive = (channel: Channel) => channel !== 'frozen' && channel !== 'dead';

export interface Ask {
  id: string;
  channel: Channel;
  limit: number;
  ttl: number;
  holds: string[];
  /** It wants nothing of what was done before. */
  once: boolean;
  /** Of those in line who ask for this, only the newest is served. */
  newest: boolean;
  /** And only when nothing newer has come for a time. */
  settles: boolean;
}

export interface Waiter extends Ask {
  arrival: number;
  overdue: boolean;
  /** It went, and its place is kept. */
  away: boolean;
  /** That time is not over yet. */
  settling: boolean;
  /** Put out of the line by a newer one of this process; it has not left yet. */
  out?: string;
}

export interface Member extends Waiter {
  token: number;
  /** 0 while the lease lives; of two that ran out the larger number ran out earlier. */
  ranOut: number;
  /** 0 = heard of just now; of two the larger number was heard of earlier. */
  aged: number;
  /** Granted more than a few seconds ago. */
  old: boolean;
  /** Handed over and not claimed yet. */
  given: boolean;
  reason?: 'stolen';
}

/** That what the key stands for was done. */
export interface Done {
  token: number;
  by: string;
  result: unknown;
  /** Its time is over, and nobody has noticed yet. */
  over: boolean;
}

/** Of one that has to go, for whichever reason, or of one that holds the lock in spite of leaving: its token. 0 = nothing of the kind. */
export type Left = number | { outcome: 'superseded'; newer: string } | ({ outcome: 'doneBefore' } & Omit<Done, 'over'>);

export type Answer = Record<string, unknown> & { outcome: string };
export type StealIf = 'stale' | 'silent' | 'noTtl' | 'any' | { fencingToken: number };

const REMEMBERED = 16;
/** Ids begin with the name of their process, which stands for an execution here. */
const processOf = (id: string) => String(id.split('-')[0]);

export class Model {
  value: undefined | { ours: number } | { foreign: number };
  keyTtl: 'none' | 'leases' | 'short' | 'long' = 'none';
  fence: number | undefined;
  /** Of tokens below this one nothing is remembered. */
  floor: number | undefined;
  tokens = 0;
  members: Member[] = [];
  line: Waiter[] = [];
  lost: Array<{ id: string; token: number; reason: string; by: number }> = [];
  silent = new Set<Channel>();
  index = new Map<string, Set<string>>();
  done: Done | undefined;
  /** Who was the newest, of those of whom only the newest is served, when this was last looked at. */
  newest: string | undefined;
  /** Told to leave the line, if they have to: ids, and processes of which all are meant. */
  told = { ids: new Set<string>(), channels: new Set<Channel>() };

  get foreign(): boolean {
    return this.value !== undefined && 'foreign' in this.value;
  }

  get living(): Member[] {
    return this.members.filter((m) => !m.ranOut).sort((a, b) => b.token - a.token);
  }

  member = (id: string) => this.members.find((m) => m.id === id);

  /** @param robbed the token that Redis chose, where several holders were heard of in the same millisecond */
  acquire(me: Ask, wait: 'no' | 'line', arrival: number, stealAfter = false, robbed?: unknown): Answer {
    this.settle();
    if (wait === 'line') this.silent.delete(me.channel);
    const held = this.member(me.id);
    if (held && held.limit >= SHARED !== me.limit >= SHARED) return { outcome: 'otherMode' };
    if (held) {
      me.holds.forEach((hold) => held.holds.includes(hold) || held.holds.push(hold));
      this.renew(held, Math.max(held.ttl, me.ttl));
      return this.acquired(held, { again: true });
    }
    const place = this.line.find(({ id }) => id === me.id);
    if (me.once && this.done) {
      if (wait === 'line') this.goOut(me.id);
      return this.doneBefore(this.done);
    }
    if (me.newest && place?.out) {
      this.goOut(me.id);
      return { outcome: 'superseded', newer: place.out };
    }
    // Also of one who was handed the lock and has not claimed it, a place is left to keep.
    const waits = this.line.length > 0 || this.members.some(({ given }) => given);
    const fits = () => !this.foreign && this.room(me.limit);
    if (!waits && !me.settles && fits()) return this.acquired(this.grant(me));
    if (stealAfter && !this.foreign && !this.room(me.limit)) {
      const victim = this.stalest((m) => m.aged > 0, robbed);
      if (victim && this.room(me.limit, victim)) return this.acquired(this.takeOver(victim, me), { robbed: victim.token });
    }
    if (wait === 'line') {
      if (place) Object.assign(place, me, { overdue: false, away: false });
      else this.join({ ...me, arrival, overdue: false, away: false, settling: me.settles });
      const newer = this.becomeNewest(me.id);
      if (newer) {
        this.goOut(me.id);
        return { outcome: 'superseded', newer };
      }
      this.indexOf(me.id).add(me.id);
    }
    const { mine, blocked } = this.room() ? this.promote({ self: me }) : { mine: undefined, blocked: false };
    if (mine) return this.acquired(mine);
    if (wait === 'line') return { outcome: 'waiting' };
    if (!blocked && fits()) return this.acquired(this.grant(me));
    const other = !fits() && this.living.length < me.limit && me.limit < SHARED;
    return { outcome: 'busy', reason: this.foreign ? 'foreign' : other ? 'otherLimit' : 'held', ...this.inTheWay() };
  }

  heartbeat(id: string, token: number, hold: string[], ttl: number): Answer {
    const lived = this.living.some((m) => !m.given);
    this.settle();
    let m = this.member(id);
    // A newer lease of the same id is not the one that is meant; a hand-over is claimed by its own token.
    if (token !== 0 && token !== m?.token) m = undefined;
    if (!m) {
      if (this.room()) this.promote();
      this.unindex(id);
      const { reason, by } = this.fate(id, token) ?? { reason: 'notHeld', by: 0 };
      return { outcome: 'lost', reason, by };
    }
    const revived = m.ranOut > 0;
    const shortened = this.value !== undefined && this.keyTtl === 'short' && lived;
    hold.forEach((name) => m.holds.includes(name) || m.holds.push(name));
    this.renew(m, ttl || m.ttl);
    this.indexOf(id).add(id);
    return { outcome: 'alive', token: m.token, ttl: m.ttl, revived, shortened };
  }

  /** @param done what is left with the mark that it was done */
  release(id: string, token: number, hold: string[], done?: { result: unknown }): Answer {
    const noted = this.done !== undefined || this.newest !== undefined;
    this.settle();
    // A newer lease of the same id is not what is given back.
    const m = this.members.find((other) => other.id === id && (token === 0 || other.token === token));
    if (!m) {
      this.promote();
      this.unindex(id);
      const why = this.fate(id, token);
      return why ? { outcome: 'notHeld', reason: why.reason, by: why.by } : { outcome: 'alreadyReleased' };
    }
    const left = hold.length ? m.holds.filter((name) => !hold.includes(name)) : [];
    if (left.length) {
      m.holds = left;
      if (this.value) this.keyTtl = 'leases';
      return { outcome: 'released', expiredBefore: false, holdsLeft: left.length };
    }
    this.indexOf(id).delete(id);
    if (done) this.done = { token: m.token, by: processOf(id), result: done.result, over: false };
    if (done || noted || !this.handOver(m)) this.giveBack(m);
    return { outcome: 'released', expiredBefore: m.ranOut > 0, holdsLeft: 0 };
  }

  /** @param keeps 'place' = its place in line is kept; 'ifItMay' = it leaves only if it has to */
  leave(ids: string[], mode: 'take' | 'back' | 'unclaimed', keeps: 'nothing' | 'place' | 'ifItMay' = 'nothing'): Answer & { results: Left[] } {
    this.settle();
    const before = this.tokens;
    let gaveBack = false;
    const results = ids.map((id): Left => {
      const m = this.member(id);
      const place = this.line.find((w) => w.id === id);
      if (m && mode === 'take') {
        this.renew(m, m.ttl);
        this.indexOf(id).add(id);
        return m.token;
      }
      const out = m ? 0 : this.whyOut(place);
      if (!m && !out && keeps !== 'nothing' && place) {
        if (keeps === 'place') Object.assign(place, { away: true, overdue: false });
      } else if (!m || m.given || mode !== 'unclaimed') {
        if (m) this.remove(m);
        gaveBack ||= m !== undefined;
        this.goOut(id);
      }
      return out;
    });
    if (this.room()) this.promote();
    if (gaveBack) this.coverRest(before);
    return { outcome: 'left', results, queue: this.line.length };
  }

  look(channel: Channel, witness: string): Answer {
    this.settle();
    this.silent.delete(channel);
    const place = this.line.find(({ id }) => id === witness);
    const stays = place ? !this.whyOut(place) : this.member(witness) !== undefined;
    this.promote({ asking: channel });
    const granted = this.members.filter((m) => m.given && m.channel === channel).map(({ id }) => id);
    return { outcome: 'look', concerned: [...granted, ...(stays ? [] : [witness])].sort() };
  }

  steal(me: Ask, condition: StealIf, robbed?: unknown): Answer {
    this.settle();
    if (this.foreign) {
      const takes = condition === 'any' || (condition === 'noTtl' && this.keyTtl === 'none');
      if (takes) return { ...this.acquired(this.grant(me)), outcome: 'stolen', robbed: 'foreign' };
      return { outcome: 'notStolen', reason: condition === 'noTtl' ? 'hasTtl' : 'foreign', ...this.inTheWay() };
    }
    const matches = (m: Member) => {
      if (typeof condition === 'object') return m.token === condition.fencingToken;
      return condition === 'any' ? m.old : condition !== 'noTtl' && m.aged > 0;
    };
    const victim = this.stalest(matches, robbed);
    if (victim && !this.room(me.limit, victim)) return { outcome: 'notStolen', reason: 'otherLimit', ...this.inTheWay() };
    if (victim) return { ...this.acquired(this.takeOver(victim, me)), outcome: 'stolen', robbed: victim.token };
    const reasons = { stale: 'notStale', silent: 'notStale', noTtl: 'notForeign', any: 'tooYoung' };
    const reason = typeof condition === 'object' ? 'otherHolder' : reasons[condition];
    return { outcome: 'notStolen', reason: this.living.length === 0 ? 'free' : reason, ...this.inTheWay() };
  }

  /** Redis lost everything. */
  flush(): void {
    Object.assign(this, { value: undefined, keyTtl: 'none', fence: undefined, floor: undefined });
    Object.assign(this, { members: [], line: [], lost: [], silent: new Set(), index: new Map(), done: undefined, newest: undefined });
  }

  /** The time of a lease is over. */
  expire(m: Member, order: number): void {
    m.ranOut = order;
    if (this.keyTtl === 'short' || (this.keyTtl === 'leases' && this.living.length === 0)) this.setKey(undefined);
  }

  setKey(value: Model['value'], keyTtl: Model['keyTtl'] = this.keyTtl): void {
    this.value = value;
    this.keyTtl = value ? keyTtl : 'none';
  }

  /** What stands in the way, as the answers of the API name it. */
  inTheWay(): { queue: number; holders: unknown } {
    return { queue: this.line.length, holders: this.foreign ? 'foreign' : this.living.map(({ token }) => token) };
  }

  private acquired(m: Member, more: object = {}): Answer {
    this.indexOf(m.id).add(m.id);
    return { outcome: 'acquired', token: m.token, ...more };
  }

  private indexOf(id: string): Set<string> {
    const process = processOf(id);
    const known = this.index.get(process) ?? new Set<string>();
    this.index.set(process, known);
    return known;
  }

  /** Whether one more can enter who allows `limit` holders; without it, whether anybody can. @param but as if that one were gone */
  private room(limit = Infinity, but?: Member): boolean {
    const others = this.living.filter((m) => m !== but);
    return others.length < Math.min(limit, ...others.map((m) => m.limit));
  }

  /** Neither held nor waited for under this id: nothing of it stays in the index. */
  private unindex(id: string): void {
    if (!this.member(id) && !this.line.some((w) => w.id === id)) this.indexOf(id).delete(id);
  }

  /** It leaves the line, and the index where it holds nothing. */
  private goOut(id: string): void {
    this.line = this.line.filter((w) => w.id !== id);
    this.unindex(id);
  }

  private whyOut(place: Waiter | undefined): Left {
    if (place?.out) return { outcome: 'superseded', newer: place.out };
    return place?.once && this.done ? this.doneBefore(this.done) : 0;
  }

  private doneBefore({ token, by, result }: Done): { outcome: 'doneBefore' } & Omit<Done, 'over'> {
    return { outcome: 'doneBefore', token, by, result };
  }

  /**
   * One who wants to be served as the newest is in line: it puts out the one who was, unless that came later.
   * @returns the process of that later one
   */
  private becomeNewest(id: string): string | undefined {
    const w = this.line.find((other) => other.id === id);
    const old = this.line.find((other) => other.id === this.newest);
    if (!w?.newest || old === w) return undefined;
    if (old && old.arrival > w.arrival) return processOf(old.id);
    if (old) this.supersede(old, processOf(id));
    this.newest = id;
    return undefined;
  }

  private supersede(old: Waiter, newer: string): void {
    old.out = newer;
    if (!old.away) this.told.ids.add(old.id);
  }

  /** Leases end by their time, by a deleted key (living ones), and by a key of another kind (all). */
  private settle(): void {
    for (const m of [...this.members].reverse()) {
      const revoked = this.foreign ? 'keyOverwritten' : !this.value && !m.ranOut ? 'keyDeleted' : undefined;
      if (m.given && (revoked || m.ranOut)) {
        this.lose(m, revoked ?? 'expired', 0);
        this.join(m);
        const newer = this.becomeNewest(m.id);
        if (newer) this.supersede(this.line.find(({ id }) => id === m.id)!, newer);
        if (!revoked) this.silent.add(m.channel);
      } else if (revoked) this.lose(m, revoked, 0);
    }
    // Others have entered who leave no room for it, by their limit or by its own.
    const fewest = Math.min(...this.living.map(({ limit }) => limit));
    for (const m of this.members.filter(({ ranOut, limit }) => ranOut && this.living.length >= Math.min(limit, fewest))) {
      this.lose(m, 'expired', this.living.find(({ given }) => !given)?.token ?? 0);
    }
    if (this.done?.over) this.done = undefined;
    const waits = [...this.line, ...this.members.filter(({ given }) => given)];
    if (!waits.some(({ id }) => id === this.newest)) this.newest = undefined;
  }

  /** First come, first served; nobody passes one who needs more room; who does not answer keeps its place. */
  private promote({ self, asking }: { self?: Ask; asking?: Channel } = {}): { mine?: Member; blocked: boolean } {
    let mine: Member | undefined;
    let handedTo: Channel | undefined;
    let blocked = false;
    if (this.foreign) return { blocked };
    for (const w of [...this.line]) {
      if (w.overdue && w.id !== self?.id) this.line = this.line.filter((other) => other !== w);
      else if (w.out || w.settling || (w.away && w.id !== self?.id)) continue;
      else if (w.once && this.done) this.tellOut(w, asking);
      else if (blocked || !this.room(w.limit)) {
        blocked = true;
        // Of a hand-over the next process is told too; the search for it goes on no further.
        if (w.channel !== handedTo) break;
      } else if (w.id === self?.id) mine = this.grant(self);
      else if (!this.silent.has(w.channel) && (w.channel === asking || w.channel !== 'dead')) {
        this.grant(w, true);
        handedTo = w.channel;
      }
    }
    return { mine, blocked };
  }

  /** A process that asks just now learns it from the answer. */
  private tellOut({ channel }: Waiter, asking: Channel | undefined): void {
    if (channel !== asking) this.told.channels.add(channel);
  }

  private grant(w: Ask, given = false): Member {
    const token = ++this.tokens;
    const arrival = 'arrival' in w ? (w as Waiter).arrival : 0;
    this.line = this.line.filter(({ id }) => id !== w.id);
    const limit = Math.min(w.limit, ...this.living.map((m) => m.limit));
    while (this.members.length >= limit) {
      const oldest = [...this.members].sort((a, b) => b.ranOut - a.ranOut)[0];
      if (!oldest?.ranOut) break;
      this.lose(oldest, oldest.reason ?? 'expired', token);
    }
    this.setKey({ ours: 0 }, 'leases');
    this.fence = token;
    this.floor ??= token;
    const m: Member = { ...w, arrival, overdue: false, away: false, settling: false, holds: [...w.holds], token, ranOut: 0, aged: 0, old: false, given };
    this.members.push(m);
    return m;
  }

  private stalest(matches: (m: Member) => boolean, robbed: unknown): Member | undefined {
    const candidates = this.living.filter((m) => !m.given && matches(m)).sort((a, b) => b.aged - a.aged);
    return candidates.find((m) => m.aged === candidates[0]?.aged && m.token === robbed) ?? candidates[0];
  }

  private takeOver(victim: Member, me: Ask): Member {
    victim.ranOut = Infinity;
    victim.reason = 'stolen';
    const m = this.grant(me);
    if (this.members.includes(victim)) this.lose(victim, 'stolen', m.token);
    return m;
  }

  private renew(m: Member, ttl: number): void {
    Object.assign(m, { ranOut: 0, aged: 0, given: false, ttl });
    this.setKey(this.value ?? { ours: 0 }, 'leases');
  }

  /** The plain case: the only holder, and a first in line who is there and wants the lock for itself, in turn. The rest of the line is not looked at. */
  private handOver(m: Member): boolean {
    const [head] = this.line;
    const plain = this.members.length === 1 && !m.ranOut && !m.given && this.silent.size === 0;
    const intact = this.value !== undefined && 'ours' in this.value && this.value.ours === 0 && this.fence === m.token;
    if (!plain || !intact || !head || head.overdue || head.away || head.limit !== 1 || head.channel === 'dead') return false;
    if (head.once || head.newest || head.out) return false;
    this.remove(m);
    this.grant(head, true);
    return true;
  }

  private giveBack(m: Member): void {
    const before = this.tokens;
    this.remove(m);
    this.promote();
    this.coverRest(before);
  }

  /** The key goes with the last holder, unless somebody has entered. @param before the number of tokens until then */
  private coverRest(before: number): void {
    if (!this.foreign && this.tokens === before) this.setKey(this.living.length ? this.value : undefined, 'leases');
  }

  private join(w: Waiter): void {
    const { id, channel, limit, ttl, holds, once, newest, settles, arrival, overdue, away, settling } = w;
    this.line = [...this.line, { id, channel, limit, ttl, holds, once, newest, settles, arrival, overdue, away, settling }].sort((a, b) => a.arrival - b.arrival);
  }

  private remove(m: Member): void {
    this.members = this.members.filter((other) => other !== m);
  }

  private lose(m: Member, reason: string, by: number): void {
    this.remove(m);
    this.lost.push({ id: m.id, token: m.token, reason, by });
    if (this.lost.length > REMEMBERED) this.floor = Math.max(this.floor ?? 0, this.lost.shift()!.token + 1);
  }

  /** Why a lease is not there; undefined when it was given back in good order. */
  private fate(id: string, token: number): { reason: string; by: number } | undefined {
    const known = this.lost.find((entry) => entry.id === id && entry.token === token);
    if (known) return known;
    const by = this.living.find((m) => !m.given)?.token ?? 0;
    if (this.fence === undefined) return { reason: 'stateLost', by };
    return token < (this.floor ?? 0) ? { reason: 'unknown', by } : undefined;
  }
}
