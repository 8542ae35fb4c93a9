import { History, type Kind, type Note } from './support/history';

/** The checker of the storm finds what it is there for. */
describe('the history check', () => {
  const T = 1_000_000;

  interface More {
    asked?: number;
    process?: string;
    read?: number;
    token?: number;
    key?: string;
    limit?: number;
    kind?: Kind;
    done?: boolean;
  }
  const tokenAt = (moment: number) => (T + moment) * 1000;

  /** Somebody who took the lock at `from` and left it at `to`; the lease is 1,000 ms. Who does not write reads only. */
  const visit = (id: string, from: number, to: number, more: More = {}): Note[] => {
    const { asked = from, process = id, read = 0, token = tokenAt(from), key = 'k', limit = 1, kind = 'turn', done = false } = more;
    return [
      { what: 'ask', process, at: T + asked, id, key, limit, kind },
      ...(asked < from ? [{ what: 'place' as const, process, at: T + asked, id, ticket: tokenAt(asked) }] : []),
      { what: 'got', process, at: T + from, id, token, expiresAt: T + from + 1000 },
      { what: 'begin', process, at: T + from, id, value: read },
      { what: 'end', process, at: T + to, id, wrote: read + (limit === 1 ? 1 : 0) },
      { what: 'released', process, at: T + to, id, outcome: 'released', done },
    ];
  };
  /** Somebody who had to leave at `at`. */
  const out = (id: string, asked: number, at: number, kind: Kind, why: Partial<Note>): Note[] => [
    { what: 'ask', process: id, at: T + asked, id, key: 'k', kind },
    { what: 'place', process: id, at: T + asked, id, ticket: tokenAt(asked) },
    { what: 'out', process: id, at: T + at, id, outcome: 'busy', ...why },
  ];
  const faults = (...notes: Note[]) => new History(notes.sort((a, b) => a.at - b.at), 1000).check(5500).faults.join('\n');

  it('finds nothing where there is nothing', () => {
    expect(faults(...visit('a', 0, 10), ...visit('b', 12, 20, { asked: 5, read: 1 }), ...visit('c', 20, 30, { asked: 6, read: 2 }))).toBe('');
  });

  it('finds two at once, and not one whose lease was over', () => {
    expect(faults(...visit('a', 0, 100), ...visit('b', 50, 150))).toMatch(/at once/);
    expect(faults(...visit('a', 0, 1100), ...visit('b', 1001, 1200))).toBe('');
    expect(faults(...visit('a', 0, 1100), ...visit('b', 900, 1200))).toMatch(/at once/);
  });

  it('finds tokens that do not grow', () => {
    expect(faults(...visit('a', 0, 10), ...visit('b', 20, 30, { read: 1, token: T * 1000 }))).toMatch(/twice/);
    expect(faults(...visit('a', 10, 20), ...visit('b', 30, 40, { read: 1, token: T * 1000 }))).toMatch(/larger token/);
  });

  it('finds one who overtook, unless the other was frozen', () => {
    const [first, second] = [visit('a', 60, 70, { asked: 10, read: 1 }), visit('b', 40, 50, { asked: 20 })];
    expect(faults(...first, ...second)).toMatch(/b .* overtook a|a .* overtook b/);
    const stopped: Note = { what: 'stopped', process: 'a', at: T + 15 };
    expect(faults(...first, ...second, stopped, { what: 'continued', process: 'a', at: T + 55 })).toBe('');
    expect(faults(...visit('a', 60, 70, { asked: 10, read: 1 }), ...visit('newcomer', 40, 50))).toMatch(/overtook/);
  });

  it('finds a lost update', () => {
    expect(faults(...visit('a', 0, 10, { read: 4 }), ...visit('b', 20, 30, { read: 4 }))).toMatch(/a wrote 5, b read 4/);
  });

  it('finds a gap while somebody waits', () => {
    expect(faults(...visit('a', 0, 10), ...visit('b', 6000, 6010, { asked: 5, read: 1 }))).toMatch(/nobody for 5990 ms/);
    expect(faults(...visit('a', 0, 10), ...visit('b', 6000, 6010, { read: 1 }))).toBe('');
  });

  it('finds one more than a semaphore has room for', () => {
    const two = { limit: 2 };
    expect(faults(...visit('a', 0, 100, two), ...visit('b', 50, 150, two), ...visit('c', 100, 160, two))).toBe('');
    expect(faults(...visit('a', 0, 100, two), ...visit('b', 50, 150, two), ...visit('c', 90, 160, two))).toMatch(/a, b, c at once/);
  });

  describe('of readers and writers', () => {
    const reads = { limit: 1_000_000 };

    it('lets any number of readers be there together', () => {
      expect(faults(...visit('a', 0, 100, reads), ...visit('b', 10, 90, reads), ...visit('c', 20, 110, reads), ...visit('w', 110, 120))).toBe('');
    });

    it('finds a writer beside a reader, whoever came first', () => {
      expect(faults(...visit('r', 0, 100, reads), ...visit('w', 99, 150))).toMatch(/r, w at once/);
      expect(faults(...visit('w', 0, 100), ...visit('r', 99, 150, reads))).toMatch(/w, r at once/);
      expect(faults(...visit('w', 0, 100), ...visit('v', 99, 150))).toMatch(/w, v at once/);
    });

    it('finds a reader that does not see what was written', () => {
      expect(faults(...visit('w', 0, 10, { read: 4 }), ...visit('r', 20, 30, { ...reads, read: 5 }), ...visit('s', 40, 50, { ...reads, read: 4 }))).toBe('k: w wrote 5, s read 4');
    });

    it('measures a gap from the last reader that was there', () => {
      const waits = visit('w', 1400, 1410, { asked: 5, read: 0 });
      const verdict = new History([...visit('a', 0, 900, reads), ...visit('b', 3, 10, reads), ...waits].sort((a, b) => a.at - b.at), 1000).check(5500);
      expect(verdict.gaps.max).toBe(500);
    });
  });

  describe('of what is done once', () => {
    const once = { kind: 'once' as const };
    const done = { ...once, done: true };

    it('finds nothing where it was tried until it was done, and the others were told', () => {
      const told = out('c', 5, 31, 'once', { doneBefore: tokenAt(20), outcome: 'doneBefore' });
      expect(faults(...visit('a', 0, 10, once), ...visit('b', 20, 30, { ...done, asked: 2, read: 1 }), ...told)).toBe('');
    });

    it('finds one who was let in after it was done, as an answer or another one had it', () => {
      const later = visit('b', 20, 30, { ...once, read: 1 });
      expect(faults(...visit('a', 0, 10, done), ...later)).toMatch(/b was let in though a had done it/);
      expect(faults(...visit('a', 0, 10, once), ...out('c', 5, 11, 'once', { doneBefore: tokenAt(0) }), ...later)).toMatch(/b was let in though a had done it/);
    });

    it('finds what was done twice', () => {
      expect(faults(...visit('a', 0, 10, done), ...visit('b', 20, 30, { ...done, read: 1 }))).toMatch(/done 2 times/);
    });

    it('finds that nobody did what is said to be done', () => {
      const unfinished = visit('a', 0, 10, once).filter(({ what }) => what !== 'end' && what !== 'released');
      expect(faults(...unfinished, ...out('c', 5, 11, 'once', { doneBefore: tokenAt(0) }))).toMatch(/nobody came to the end with it/);
    });

    it('finds one who waited in vain, unless it was frozen', () => {
      const vain = out('b', 5, 900, 'once', { outcome: 'timedOut' });
      expect(faults(...visit('a', 0, 10, once), ...vain)).toMatch(/b waited in vain/);
      const stopped: Note[] = [{ what: 'stopped', process: 'b', at: T + 10 }, { what: 'continued', process: 'b', at: T + 899 }];
      expect(faults(...visit('a', 0, 10, once), ...vain, ...stopped)).toBe('');
    });
  });

  describe('of the newest only', () => {
    const newest = { kind: 'newest' as const };
    const first = () => visit('a', 0, 50, newest);

    it('finds nothing where of a burst the one that ran and the newest are served', () => {
      const burst = [...out('b', 10, 21, 'newest', { supersededBy: 'c' }), ...out('c', 20, 31, 'newest', { supersededBy: 'd' })];
      expect(faults(...first(), ...burst, ...visit('d', 50, 60, { ...newest, asked: 30, read: 1 }))).toBe('');
    });

    it('finds an older one that was served, whatever became of the newer', () => {
      const older = visit('b', 50, 60, { ...newest, asked: 10, read: 1 });
      expect(faults(...first(), ...older, ...visit('c', 60, 70, { ...newest, asked: 30, read: 2 }))).toMatch(/b was served though a newer one had come/);
      expect(faults(...first(), ...older, ...out('c', 30, 40, 'newest', { outcome: 'timedOut' }))).toMatch(/b was served though a newer one had come/);
      expect(faults(...first(), ...older, ...visit('c', 60, 70, { ...newest, asked: 51, read: 2 }))).toBe('');
    });

    it('finds one that was put out by an older one, or by nobody', () => {
      expect(faults(...first(), ...out('b', 10, 31, 'newest', {}), ...out('c', 20, 31, 'newest', { supersededBy: 'b' }))).toMatch(/c was put out by b, which came before/);
      expect(faults(...first(), ...out('b', 10, 31, 'newest', { supersededBy: 'x' }))).toMatch(/b was put out by x, whom nobody knows/);
    });
  });

  describe('of several keys', () => {
    const both = (id: string, from: number, to: number, keys: string[], read = 0) =>
      keys.flatMap((key, i) => visit(`${id}.${i}`, from, to, { key, kind: 'list', process: id, read }));

    it('finds two at once on the key that they share, and only there', () => {
      expect(faults(...both('a', 0, 100, ['k', 'l']), ...both('b', 50, 150, ['m', 'n']), ...both('c', 150, 160, ['l', 'm'], 1))).toBe('');
      expect(faults(...both('a', 0, 100, ['k', 'l']), ...both('b', 50, 150, ['l', 'm']))).toMatch(/^l: a\.1, b\.0 at once/);
    });

    it('finds one that waited in vain: a deadlock', () => {
      expect(faults(...both('a', 0, 10, ['k', 'l']), ...out('b', 5, 900, 'list', { outcome: 'timedOut' }))).toMatch(/b waited in vain/);
    });
  });
});
