import { History, type Note } from './support/history';

/** The checker of the storm finds what it is there for. */
describe('the history check', () => {
  const keys = [{ key: 'k', limit: 1 }];
  const T = 1_000_000;

  /** Somebody who took the lock at `from` and left it at `to`; the lease is 1,000 ms. */
  const visit = (id: string, from: number, to: number, more: { asked?: number; process?: string; read?: number; token?: number } = {}): Note[] => {
    const { asked = from, process = id, read = 0, token = (T + from) * 1000 } = more;
    return [
      { what: 'ask', process, at: T + asked, id, key: 'k' },
      ...(asked < from ? [{ what: 'place' as const, process, at: T + asked, id, ticket: (T + asked) * 1000 }] : []),
      { what: 'got', process, at: T + from, id, token, expiresAt: T + from + 1000 },
      { what: 'begin', process, at: T + from, id, value: read },
      { what: 'end', process, at: T + to, id, wrote: read + 1 },
      { what: 'released', process, at: T + to, id, outcome: 'released' },
    ];
  };
  const faults = (...notes: Note[]) => new History(notes.sort((a, b) => a.at - b.at), keys, 1000).check(5500).faults.join('\n');

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
});
