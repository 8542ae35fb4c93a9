import net from 'node:net';

/** What the proxy does with a command: passes it on, or worse. */
export type Fate =
  | 'pass'
  | 'loseReply' // Redis executes it; the connection is cut instead of the answer
  | 'swallow' // it never reaches Redis, and nothing more is said on this connection
  | { delayMs: number } // it reaches Redis later, and those behind it may be there first
  | { after: Promise<unknown> } // it waits for that, and those behind it on this connection wait with it
  | { answerAfter: Promise<unknown> }; // Redis executes it; what is said on this connection from now on waits for that

/**
 * A TCP proxy before Redis that misbehaves as told. A chunk that a client writes is one command here, or several that
 * were sent together; `judge` sees its bytes as text.
 */
export class Proxy {
  judge: (command: string) => Fate = () => 'pass';
  /** Refuses new connections. */
  refusing = false;
  /** How many commands have reached Redis late. */
  delivered = 0;
  private readonly sockets = new Set<net.Socket>();
  private readonly connections = new Set<{ said: string[]; silence: () => void }>();
  private server!: net.Server;

  /** Where new connections lead; another one may be put there (a failover). */
  target!: { host: string; port: number };

  static async start(target: { host: string; port: number }): Promise<Proxy> {
    const proxy = new Proxy();
    await proxy.listen(target);
    return proxy;
  }

  async listen(target: { host: string; port: number }): Promise<void> {
    this.target = target;
    this.server = net.createServer((client) => this.connect(client));
    await new Promise<void>((resolve) => this.server.listen(0, '127.0.0.1', resolve));
  }

  get port(): number {
    return (this.server.address() as net.AddressInfo).port;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Cuts all connections. */
  cut(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  /** The connections on which such a command was sent go silent, in both directions, and stay open: nobody is told. Returns how many. */
  silence(command: RegExp): number {
    const found = [...this.connections].filter(({ said }) => said.some((text) => command.test(text)));
    for (const { silence } of found) silence();
    return found.length;
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private connect(client: net.Socket): void {
    if (this.refusing) {
      client.destroy();
      return;
    }
    const redis = net.connect(this.target.port, this.target.host);
    let losing = false;
    let silent = false;
    let clientGone = false;
    let held = 0;
    let gate: Promise<unknown> | undefined;
    let answers: Promise<unknown> | undefined;
    const connection = { said: [] as string[], silence: () => void (silent = true) };
    this.connections.add(connection);
    const deliver = (bytes: Buffer) => {
      held -= 1;
      if (!redis.destroyed) redis.write(bytes, () => (this.delivered += 1));
      // What was under way still arrives, though its sender is gone.
      if (clientGone && held === 0) redis.end();
    };
    client.on('data', (bytes) => {
      if (silent) return;
      const command = bytes.toString('latin1');
      connection.said.push(command);
      const fate = this.judge(command);
      if (fate === 'swallow') silent = true;
      else if (typeof fate === 'object' && 'delayMs' in fate) {
        held += 1;
        setTimeout(() => deliver(bytes), fate.delayMs).unref();
      } else if (gate || (typeof fate === 'object' && 'after' in fate)) {
        held += 1;
        const after = typeof fate === 'object' && 'after' in fate ? fate.after : undefined;
        gate = Promise.all([gate, after]).then(() => deliver(bytes));
      } else {
        losing ||= fate === 'loseReply';
        if (typeof fate === 'object' && 'answerAfter' in fate) answers = fate.answerAfter;
        redis.write(bytes);
      }
    });
    redis.on('data', (bytes) => {
      const answer = () => {
        if (!client.destroyed && !silent) client.write(bytes);
      };
      if (losing) client.destroy();
      else if (answers) answers = answers.then(answer);
      else answer();
    });
    for (const socket of [client, redis]) {
      this.sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => this.sockets.delete(socket));
    }
    client.on('close', () => {
      this.connections.delete(connection);
      clientGone = true;
      if (held === 0) redis.destroy();
    });
    redis.on('close', () => client.destroy());
  }
}

/** A subscription in what a client sends (not the word in the text of a script). */
export const SUBSCRIBE = /\r\ns?subscribe\r\n/i;

/** Applies `fate` to the first command that contains `text`, once; all else passes. */
export function once(text: string, fate: Fate): (command: string) => Fate {
  let armed = true;
  return (command) => {
    if (!armed || !command.includes(text)) return 'pass';
    armed = false;
    return fate;
  };
}

/** Something to hold a command back with (`{ after: gate.opened }`), until it is opened. */
export class Gate {
  open!: () => void;
  readonly opened = new Promise<void>((resolve) => (this.open = resolve));
}
