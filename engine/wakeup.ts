import { stayInBackground, type Client } from './connection';
import { channelName } from './keys';

/** `grant <lock id> <key>`: this waiter was given the lock. `look - <key>`: something will change soon. */
export type Message = { kind: 'grant' | 'look'; lockId: string; key: string };

/**
 * The one subscriber connection and one channel of this process. Opened when somebody waits for the first time.
 * Where the user has no right to subscribe, `polling` is true and waiters look for themselves.
 */
export class WakeUp {
  private client: Client | undefined;
  private opening: Promise<void> | undefined;
  private listening = false;
  private name = channelName();

  constructor(
    private readonly make: () => Client,
    private readonly onMessage: (message: Message) => void,
    /** After every subscription: messages that were sent meanwhile are gone, so everybody has to ask again. */
    private readonly onListening: () => void,
  ) {}

  get channel(): string {
    return this.name;
  }

  get polling(): boolean {
    return this.name.startsWith('poll:');
  }

  get ready(): boolean {
    return this.listening || this.polling;
  }

  /** Resolves once messages arrive, or it is known that they never will. Never rejects: waiting works without, slower. */
  open(limitMs: number): Promise<void> {
    if (this.ready) return Promise.resolve();
    this.opening ??= this.connect();
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, limitMs);
      void this.opening?.then(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  close(): void {
    const client = this.client;
    this.client = undefined;
    this.opening = undefined;
    this.listening = false;
    client?.disconnect();
  }

  private connect(): Promise<void> {
    const client = this.make();
    this.client = client;
    return new Promise((resolve) => {
      client.on('error', () => {});
      client.on('message', (_channel: string, text: string) => {
        const parts = /^(grant|look) (\S+) ([\s\S]*)$/.exec(text);
        if (parts) this.onMessage({ kind: parts[1] as Message['kind'], lockId: parts[2] ?? '', key: parts[3] ?? '' });
      });
      client.on('close', () => {
        this.listening = false;
      });
      client.on('reconnecting', () => stayInBackground(client));
      // Refused, or given up by the caller's own rules: those who wait look for themselves, and the next one tries anew.
      client.on('end', () => {
        if (this.client === client) this.client = this.opening = undefined;
        resolve();
      });
      const subscribe = () => {
        stayInBackground(client);
        client.subscribe(this.name).then(
          () => {
            if (this.client !== client) return;
            this.listening = true;
            resolve();
            this.onListening();
          },
          (error: unknown) => {
            // A dropped connection subscribes again when it is back; a refusal is final.
            if (!/NOPERM|unknown command/i.test(String(error))) return;
            if (this.client === client) this.name = `poll:${this.name}`;
            client.disconnect();
            resolve();
            // Whoever is in line already has to be found there under the new name.
            this.onListening();
          },
        );
      };
      client.on('ready', subscribe);
      if (client.status === 'ready') subscribe();
      else if (client.status === 'wait') client.connect().catch(() => {});
    });
  }
}
